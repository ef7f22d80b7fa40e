--- `nnscaler checkpoint inspect PATH`: what a checkpoint folder, or one safetensors file, holds;
--- `export CHECKPOINT FOLDER`: a checkpoint, or a model folder, as a model folder of the
--- `transformers` library;
--- `check FOLDER`: the logits of such a folder beside those of that library;
--- `merge CHECKPOINT FOLDER`: the slices of all ranks put together, as a checkpoint in that folder;
--- `diff A B`: the first tensor in which two checkpoints differ.
local C = require 'nnscaler._C.checkpoint'
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'
local export = require 'nnscaler.hugging_face.export'
local fail = require 'nnscaler.fail'
local hugging_face = require 'nnscaler.hugging_face'
local logits = require 'nnscaler.hugging_face.logits'
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

-- Slices of a tensor where it stands in several.
local function slices_of(entry)
  return #entry.slices > 1 and ('%d slices'):format(#entry.slices) or nil
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
      local sliced = slices_of(entry)
      if sliced then more = more == '' and sliced or sliced .. '; ' .. more end
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
  if saved.state.job then print('job ' .. saved.state.job.file) end
  print(columns(rows, right))
  print(('%d tensors, %s elements, %s; optimizer: %d tensors, %s; all checksums are right'):format(
    count, grouped(total), size(bytes), states, size(state_bytes)))
end

-- The checkpoint that an action reads whole and writes to a folder.
local function open_for(opts, action)
  if not opts.folder then
    fail('usage', 'cli.checkpoint', ('%s needs the folder to write'):format(action),
      ('nnscaler checkpoint %s CHECKPOINT FOLDER'):format(action))
  end
  local saved = checkpoint.open(checkpoint.resolve(opts.checkpoint))
  saved:check()
  return saved
end

-- The logits of a folder of the transformers library beside those of the library itself.
local function check_logits(folder, python)
  local model = hugging_face.from_pretrained(folder, { dtype = 'float32' })
  print(logits.describe(logits.compare(model:materialize(0):eval(), folder, python or 'python3')))
end

-- What is exported: a checkpoint, or a folder of the transformers library.
local function source_of(opts)
  if opts.folder and hugging_face.is_folder(opts.checkpoint) then
    local model = hugging_face.from_pretrained(opts.checkpoint, { layers = opts.layers })
    local by_name = {}
    for _, entry in ipairs(model:named_parameters()) do by_name[entry.name] = entry.param end
    return { model = model, read = function(name)
      local whole = by_name[name]
      local start = {}
      for d = 1, #whole.shape do start[d] = 0 end
      return whole:draw_part(0, start, whole.shape)
    end }
  end
  if opts.layers then
    fail('usage', 'cli.checkpoint', ("--layers cuts model folders; '%s' is none"):format(
      opts.checkpoint), 'export the checkpoint whole, then cut the folder')
  end
  local saved = open_for(opts, 'export')
  local vocabulary = saved.state.vocabulary or {}
  return { model = saved_model.make(saved), read = function(name) return saved:read(name) end,
    tokenizer = vocabulary.type == 'tokenizer' and vocabulary.path or nil }
end

local function write_folder(opts)
  local source = source_of(opts)
  source.dtype, source.shard_bytes = opts.dtype, opts.shard_mib and opts.shard_mib * 2 ^ 20
  local written = export.write(opts.folder, source)
  print(('%s: %d tensors, %s in %d file(s)'):format(opts.folder, written.tensors,
    size(written.bytes), written.files))
  if opts.check then check_logits(opts.folder, opts.python) end
  return 0
end

local function check(opts)
  check_logits(opts.checkpoint, opts.python)
  return 0
end

-- Whole tensors of a checkpoint, as it is saved.
local function merge(opts)
  local saved = open_for(opts, 'merge')
  local contents = { epoch = saved.epoch, step = saved.step, state = saved.state, weights = {},
    optimizer = saved:optimizer(), aliases = {} }
  for i, name in ipairs(saved:names()) do
    contents.weights[i] = { name = name, kind = saved.by_name[name].kind, data = saved:read(name) }
  end
  for alias, name in sorted.sorted_pairs(saved.aliases) do
    table.insert(contents.aliases, { alias = alias, name = name })
  end
  print(('%s: %d tensors, optimizer: %d tensors'):format(checkpoint.save(opts.folder, contents),
    #contents.weights, #contents.optimizer))
  return 0
end

-- All tensors of a checkpoint by the names of their files, weights first, each with its reader.
local function tensors_of(saved)
  local list, by_name = {}, {}
  local function add(key, entry, name, slot)
    local item = { key = key, dtype = entry.dtype, shape = entry.shape,
      read = function() return saved:read(name, nil, slot) end }
    list[#list + 1], by_name[key] = item, item
  end
  for _, name in ipairs(saved:names()) do add(name, saved:info(name), name) end
  for _, entry in ipairs(saved:states()) do
    add(entry.parameter .. '/' .. entry.state, entry, entry.parameter, entry.state)
  end
  return list, by_name
end

local function spell(item)
  return ('%s[%s]'):format(item.dtype, table.concat(item.shape, ', '))
end

-- How two tensors of one name differ, or nil.
local function difference(a, b)
  if spell(a) ~= spell(b) then return ('%s and %s'):format(spell(a), spell(b)) end
  local x, y = a.read(), b.read()
  if x:equal(y) then return nil end
  local off = x:to('float64'):sub(y:to 'float64'):abs()
  local count = off:ne(0):sum():item() -- what is not a number differs from itself
  if count == 0 then return nil end
  return ('%d of %d elements differ, by at most %.6g (of at most %.6g)'):format(count, off:numel(),
    off:amax():item(), x:to('float64'):abs():amax():item())
end

-- Returns 0 where both hold the same, 1 where not.
local function diff(opts)
  if not opts.folder then
    fail('usage', 'cli.checkpoint', 'diff needs two checkpoints', 'nnscaler checkpoint diff A B')
  end
  local a = checkpoint.open(checkpoint.resolve(opts.checkpoint))
  local b = checkpoint.open(checkpoint.resolve(opts.folder))
  local mine, of_a = tensors_of(a)
  local theirs, of_b = tensors_of(b)
  local found = {}
  for _, item in ipairs(mine) do
    local other = of_b[item.key]
    local said = other and difference(item, other)
    if not other then said = 'only in ' .. a.path end
    if said then found[#found + 1] = ('%s: %s'):format(item.key, said) end
  end
  for _, item in ipairs(theirs) do
    if not of_a[item.key] then found[#found + 1] = ('%s: only in %s'):format(item.key, b.path) end
  end
  if #found == 0 then
    print(('the same: %d tensors, bit for bit'):format(#mine))
    return 0
  end
  print('first difference: ' .. found[1])
  print(('%d tensors differ'):format(#found))
  return 1
end

local actions = { export = write_folder, check = check, merge = merge, diff = diff }

--- Prints what a checkpoint holds, or writes it in another form; a damaged one is an error. Returns
--- the exit code.
---@param opts { action: string, checkpoint: string, folder?: string, json?: boolean,
---   dtype?: string, shard_mib?: integer, check?: boolean, python?: string,
---   layers?: integer }
---@return integer
function M.run(opts)
  if actions[opts.action] then return actions[opts.action](opts) end
  if opts.action ~= 'inspect' then
    fail('usage', 'cli.checkpoint', ("unknown action '%s'; expected inspect, merge, export, check "
      .. 'or diff'):format(opts.action))
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
