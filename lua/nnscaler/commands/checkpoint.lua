--- `nnscaler checkpoint inspect PATH`: what a checkpoint folder, or one safetensors file, holds;
--- `export CHECKPOINT FOLDER`: a checkpoint as a model folder of the `transformers` library.
local C = require 'nnscaler._C.checkpoint'
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'
local export = require 'nnscaler.hugging_face.export'
local fail = require 'nnscaler.fail'
local saved_model = require 'nnscaler.trainer.saved_model'
local sorted = require 'nnscaler.sorted'

local M = {}

local bytes_of = { float64 = 8, float32 = 4, bfloat16 = 2, float16 = 2, int64 = 8, int32 = 4,
  int16 = 2, int8 = 1, uint8 = 1, bool = 1, complex64 = 8 }

local function elements(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

local function grouped(n)
  local text = ('%d'):format(n):reverse():gsub('(%d%d%d)', '%1,'):reverse()
  return (text:gsub('^,', ''))
end

local function size(bytes)
  for _, unit in ipairs { { 2 ^ 30, 'GiB' }, { 2 ^ 20, 'MiB' }, { 2 ^ 10, 'KiB' } } do
    if bytes >= unit[1] then return ('%.1f %s'):format(bytes / unit[1], unit[2]) end
  end
  return ('%d B'):format(bytes)
end

-- Rows of text as columns; numbers are on the right.
local function columns(rows, right)
  local widths = {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do widths[i] = math.max(widths[i] or 0, #cell) end
  end
  local lines = {}
  for _, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      local pad = (' '):rep(widths[i] - #cell)
      cells[i] = right[i] and pad .. cell or cell .. pad
    end
    lines[#lines + 1] = (table.concat(cells, '  '):gsub('%s+$', ''))
  end
  return table.concat(lines, '\n')
end

local function row_of(name, entry, more)
  local n = elements(entry.shape)
  return { name, '[' .. table.concat(entry.shape, ', ') .. ']', entry.dtype, grouped(n),
    size(n * bytes_of[entry.dtype]), more or '' }
end

local head = { 'tensor', 'shape', 'dtype', 'elements', 'size', '' }
local right = { [4] = true, [5] = true }

local function show_file(path)
  local file = C.read_safetensors(path)
  local rows, total, bytes = { head }, 0, 0
  local names = file:names()
  table.sort(names)
  for _, name in ipairs(names) do
    local info = file:info(name)
    rows[#rows + 1] = row_of(name, info)
    total, bytes = total + elements(info.shape), bytes + info.bytes
  end
  print(path)
  print(columns(rows, right))
  print(('%d tensors, %s elements, %s'):format(#names, grouped(total), size(bytes)))
end

local function losses(state)
  local out = {}
  for _, key in ipairs { 'train_loss', 'val_loss', 'best_loss' } do
    local value = state[key]
    if type(value) == 'number' then
      out[#out + 1] = ('%s %.6g'):format((key:gsub('_', ' ')), value)
    end
  end
  return #out > 0 and ', ' .. table.concat(out, ', ') or ''
end

local function show_folder(saved)
  local rows = { head }
  local count, total, bytes, states, state_bytes = 0, 0, 0, 0, 0
  for _, entry in ipairs(saved.manifest.tensors) do
    if entry.alias then
      rows[#rows + 1] = { entry.name, '= ' .. entry.alias, '', '', '', '' }
    else
      local names = sorted.sorted_keys(entry.optimizer or {})
      local more = table.concat(names, ', ')
      if entry.kind == 'buffer' then more = 'buffer' end
      rows[#rows + 1] = row_of(entry.name, entry, more)
      local n = elements(entry.shape)
      count, total, bytes = count + 1, total + n, bytes + n * bytes_of[entry.dtype]
      for _, name in ipairs(names) do
        local state = entry.optimizer[name]
        states = states + 1
        state_bytes = state_bytes + elements(state.shape) * bytes_of[state.dtype]
      end
    end
  end
  print(saved.path)
  print(('epoch %d, step %d%s'):format(saved.epoch, saved.step, losses(saved.state)))
  print(columns(rows, right))
  print(('%d tensors, %s elements, %s; optimizer: %d tensors, %s; all checksums are right'):format(
    count, grouped(total), size(bytes), states, size(state_bytes)))
end

local function write_folder(opts)
  if not opts.folder then
    fail('usage', 'cli.checkpoint', 'export needs the folder to write',
      'nnscaler checkpoint export CHECKPOINT FOLDER')
  end
  local saved = checkpoint.open(checkpoint.resolve(opts.checkpoint))
  saved:check()
  local vocabulary = saved.state.vocabulary or {}
  local written = export.write(opts.folder, {
    model = saved_model.make(saved), dtype = opts.dtype, shard_bytes = opts.shard_mib
      and opts.shard_mib * 2 ^ 20,
    tokenizer = vocabulary.type == 'tokenizer' and vocabulary.path or nil,
    read = function(name) return saved:read(name) end,
  })
  print(('%s: %d tensors, %s in %d file(s)'):format(opts.folder, written.tensors,
    size(written.bytes), written.files))
  return 0
end

--- Prints what a checkpoint holds, or writes it in another form; a damaged one is an error. Returns
--- the exit code.
---@param opts { action: string, checkpoint: string, folder?: string, json?: boolean,
---   dtype?: string, shard_mib?: integer }
---@return integer
function M.run(opts)
  if opts.action == 'export' then return write_folder(opts) end
  if opts.action ~= 'inspect' then
    fail('usage', 'cli.checkpoint', ("unknown action '%s'; expected inspect or export"):format(
      opts.action))
  end
  local path = opts.checkpoint
  if base.file_exists(path) == 'file' then
    show_file(path)
    return 0
  end
  local saved = checkpoint.open(checkpoint.resolve(path))
  saved:check()
  if opts.json then
    local all = { path = saved.path, manifest = saved.manifest, state = saved.state }
    print(base.json_encode(all, 2))
  else
    show_folder(saved)
  end
  return 0
end

return M
