--- `nnscaler data prepare INPUT… --tokenizer PATH --out FOLDER`: texts to files of tokens, on
--- several threads. Started again with the same inputs and settings it goes on where it was.
local C = require 'nnscaler._C.prepare'
local base = require 'nnscaler._C.base'
local bar = require 'nnscaler.trainer.progress'
local fail = require 'nnscaler.fail'
local format = require 'nnscaler.format'
local prepared = require 'nnscaler.data.prepared'
local process = require 'nnscaler._C.process'
local tokenizer_of = require 'nnscaler.data.tokenizer'
local units = require 'nnscaler.units'

local M = {}

local area = 'data.prepare'
local settings_file = 'prepare.json'

---@class nnscaler.data.PrepareOpts
---@field action string prepare
---@field input string[] files and folders
---@field tokenizer? string
---@field out? string
---@field bos? string a token's name, or none
---@field eos? string
---@field field? string
---@field block? integer
---@field piece_mib? integer
---@field threads? integer

-- The files that are meant: folders stand for those of theirs that hold texts.
local function inputs_of(list)
  local out = {}
  for _, path in ipairs(list) do
    if base.file_exists(path) == 'folder' then
      local before = #out
      for _, name in ipairs(base.list_folder(path)) do
        if name:find '%.txt$' or name:find '%.jsonl$' or name:find '%.parquet$' then
          out[#out + 1] = path .. '/' .. name
        end
      end
      if #out == before then
        fail('usage', area, ("the folder '%s' has no .txt, .jsonl or .parquet file"):format(path))
      end
    else
      out[#out + 1] = path
    end
  end
  if #out == 0 then
    fail('usage', area, 'no input; expected text files, .jsonl or .parquet files, or folders')
  end
  return out
end

-- bos_token and eos_token of the tokenizer_config.json beside a tokenizer.
local function told_beside(path)
  local file = path:gsub('[^/]*$', '') .. 'tokenizer_config.json'
  if base.file_exists(file) ~= 'file' then return {} end
  local ok, values = pcall(function() return base.json_decode(base.file_read(file)) end)
  if not ok or type(values) ~= 'table' then
    fail('data', area, ("'%s' is not JSON"):format(file), 'name the tokens: --bos, --eos')
  end
  local told = {}
  for _, name in ipairs { 'bos', 'eos' } do
    local token = values[name .. '_token']
    told[name] = type(token) == 'table' and token.content or token
  end
  return told
end

-- Ids of the tokens around a document.
local function around(opts, code)
  local told, ids = (opts.bos and opts.eos) and {} or told_beside(code.path), {}
  for _, name in ipairs { 'bos', 'eos' } do
    local token = opts[name] or told[name]
    if type(token) == 'string' and token ~= 'none' then
      ids[name] = code:id(token)
        or fail('usage', area, ("--%s '%s' is no token of '%s'"):format(name, token, code.path))
    end
  end
  if not ids.bos and not ids.eos and not (opts.bos == 'none' and opts.eos == 'none') then
    fail('usage', area, 'nothing would stand between documents: neither --bos nor --eos is given',
      "name a token (--eos '<|endoftext|>'), or say --bos none --eos none")
  end
  return ids
end

-- Everything that the files depend on, as text.
local function describe(opts, inputs, code, ids)
  local files = {}
  for i, path in ipairs(inputs) do files[i] = { path, C.state_of_file(path) } end
  return base.json_encode({ version = prepared.version, inputs = files, bos = ids.bos,
    eos = ids.eos, tokenizer = base.hash(base.file_read(code.path)), field = opts.field or 'text',
    piece_mib = opts.piece_mib or 64 }, 2) .. '\n'
end

-- Makes the folder, or makes sure that it holds the same work.
local function claim(folder, settings)
  local file = folder .. '/' .. settings_file
  if base.file_exists(file) == 'file' then
    if base.file_read(file) == settings then return end
    fail('usage', area, ("'%s' holds tokens of other inputs or settings"):format(folder),
      ('they are listed in %s; give another folder, or remove this one'):format(file))
  end
  if base.file_exists(folder) ~= nil
    and (base.file_exists(folder) ~= 'folder' or #base.list_folder(folder) > 0) then
    fail('usage', area, ("'%s' is there already, and not by this command"):format(folder),
      'give another folder')
  end
  base.make_folder(folder)
  base.file_write(file, settings)
end

-- Waits for the end, under a bar on a terminal.
local function watch(work)
  local shown, start, columns = false, base.clock(), base.terminal_columns()
  while not work:wait(0.2) do
    if columns then
      local done, all = work:progress()
      local rate = done / (base.clock() - start)
      local parts = { ('%s/%s'):format(units.bytes(done), units.bytes(all)),
        ('%s/s'):format(units.bytes(rate)),
        rate > 0 and format.duration((all - done) / rate) .. ' left' or nil }
      local share = done / math.max(all, 1)
      base.set_status(bar.line(('Tokens: %3d%% '):format(math.floor(100 * share)), share, parts,
        base.terminal_columns() or 80))
      shown = true
    end
  end
  if shown then base.set_status('', 0) end
end

local function prepare(opts)
  for _, name in ipairs { 'tokenizer', 'out' } do
    if not opts[name] then
      fail('usage', area, ('--%s is missing'):format(name), 'nnscaler help data')
    end
  end
  local inputs, code = inputs_of(opts.input), tokenizer_of(opts.tokenizer)
  local ids = around(opts, code)
  claim(opts.out, describe(opts, inputs, code, ids))
  local start = base.clock()
  local work = C.new { tokenizer = code.path, inputs = inputs, out = opts.out, field = opts.field,
    piece_bytes = (opts.piece_mib or 64) * 2 ^ 20, bos = ids.bos, eos = ids.eos,
    threads = opts.threads or process.processors() }
  work:start()
  watch(work)
  local index = { format = prepared.format, version = prepared.version, vocab = code.vocab,
    block = opts.block, bos = ids.bos, eos = ids.eos,
    tokenizer = code.path:find '%.model$' and 'tokenizer.model' or 'tokenizer.json',
    files = work:pieces(), tokens = 0 }
  local documents = 0
  for _, piece in ipairs(index.files) do
    index.tokens, documents = index.tokens + piece.tokens, documents + piece.documents
  end
  base.file_write(opts.out .. '/' .. index.tokenizer, base.file_read(code.path))
  base.file_write(opts.out .. '/' .. prepared.index, base.json_encode(index, 2) .. '\n')
  print(('%s: %s tokens of %s documents in %d file(s), vocabulary %d, %s'):format(opts.out,
    format.grouped(index.tokens), format.grouped(documents), #index.files, code.vocab,
    format.duration(base.clock() - start)))
end

--- Does what the command line asks for; returns the exit code.
---@param opts nnscaler.data.PrepareOpts
---@return integer
function M.run(opts)
  if opts.action ~= 'prepare' then
    fail('usage', 'cli.data', ("unknown action '%s'; expected prepare"):format(opts.action))
  end
  prepare(opts)
  return 0
end

return M
