-- `nnscaler data prepare`: what its files hold, that it goes on where it was, what it refuses; and
-- the data set that reads them.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local command = require 'nnscaler.commands.data'
local nnscaler = require 'nnscaler'
local tokenizer = require 'nnscaler.data.tokenizer'

local gpt2 = 'tests/lua/tokenizers/gpt2.json'
local code = tokenizer(gpt2)
local eos = code:id '<|endoftext|>'
local dir = os.tmpname() .. '.d'
base.make_folder(dir .. '/corpus')
teardown(function() os.execute("rm -rf '" .. dir .. "'") end)

local documents = {}
for i = 0, 99 do
  documents[i + 1] = ('Document %d says "%s" – ünïcödé 日本語.\n'):format(i, ('ho '):rep(i % 7))
end
local lines = {}
for i, text in ipairs(documents) do
  lines[i] = base.json_encode { text = text, id = i } .. (i % 10 == 0 and '\n\n' or '\n')
end
base.file_write(dir .. '/corpus/a.jsonl', table.concat(lines))
base.file_write(dir .. '/corpus/b.txt', 'One text,\none document.')
base.file_write(dir .. '/corpus/ignored.bin', '\255')

-- Runs the command; returns what it printed.
local function prepare(options)
  local all = { action = 'prepare', input = { dir .. '/corpus' }, tokenizer = gpt2,
    eos = '<|endoftext|>' }
  for key, value in pairs(options) do all[key] = value or nil end
  local said, own = {}, print
  rawset(_G, 'print', function(text) said[#said + 1] = text end)
  local ok, result = pcall(command.run, all)
  rawset(_G, 'print', own)
  if not ok then error(result, 0) end
  return table.concat(said, '\n')
end

-- The ids that the folder must hold, document by document.
local function expected(bos)
  local ids = {}
  local function add(text)
    if bos then ids[#ids + 1] = bos end
    for _, id in ipairs(code:encode(text, false)) do ids[#ids + 1] = id end
    ids[#ids + 1] = eos
  end
  for _, text in ipairs(documents) do add(text) end
  add('One text,\none document.')
  return ids
end

local function held(folder, options)
  local set = nnscaler.data.tokens(folder, options or { block = 8, validation = 0 })
  return set.handle:read(0, set.handle:size()), set
end

describe('data prepare', function()
  it('joins documents with the tokens that are asked for', function()
    local said = prepare { out = dir .. '/one' }
    local ids, set = held(dir .. '/one')
    assert.is_true(T.equal(T.tensor(expected(), { dtype = 'int64' }), ids))
    assert.equal(code.vocab, set.vocab)
    assert.matches(('/one: [%%d,]+ tokens of 101 documents in 2 file%%(s%%), vocabulary %d'):format(
      code.vocab), said)
    prepare { out = dir .. '/both', bos = '<|endoftext|>' }
    assert.is_true(T.equal(T.tensor(expected(eos), { dtype = 'int64' }), (held(dir .. '/both'))))
  end)

  it('gives the same tokens whatever the pieces and threads', function()
    for _, threads in ipairs { 1, 3 } do
      local out = dir .. '/pieces' .. threads
      prepare { out = out, piece_mib = 1 / 1024, threads = threads } -- of 1 KiB
      local files = base.json_decode(base.file_read(out .. '/tokens.json')).files
      assert.is_true(#files > 5)
      assert.is_true(T.equal(T.tensor(expected(), { dtype = 'int64' }), (held(out))))
    end
  end)

  it('goes on where it was, and keeps what is there', function()
    local out = dir .. '/pieces1'
    local first = base.file_read(out .. '/tokens-000000.bin')
    local second = base.file_read(out .. '/tokens-000001.bin')
    local index = base.file_read(out .. '/tokens.json')
    -- A mark in the first file's last id shows that it is not written again.
    local marked = first:sub(1, -3) .. (first:sub(-2) == '\0\0' and '\1\0' or '\0\0')
    base.file_write(out .. '/tokens-000000.bin', marked)
    os.remove(out .. '/tokens-000001.bin')
    os.remove(out .. '/tokens.json')
    prepare { out = out, piece_mib = 1 / 1024 }
    assert.equal(marked, base.file_read(out .. '/tokens-000000.bin'))
    assert.equal(second, base.file_read(out .. '/tokens-000001.bin'))
    assert.equal(index, base.file_read(out .. '/tokens.json'))
  end)

  it('refuses a folder of other inputs or settings', function()
    assert.error_matches(function() prepare { out = dir .. '/one', bos = '<|endoftext|>' } end,
      'holds tokens of other inputs or settings')
    assert.error_matches(function() prepare { out = dir .. '/corpus' } end,
      'is there already, and not by this command')
  end)

  it('takes the tokens around documents from beside the tokenizer', function()
    base.make_folder(dir .. '/model')
    base.file_write(dir .. '/model/tokenizer.json', base.file_read(gpt2))
    local function out(name, options)
      options.out, options.eos = dir .. '/' .. name, options.eos or false
      options.tokenizer = dir .. '/model'
      return prepare(options)
    end
    assert.error_matches(function() out('none', {}) end,
      'nothing would stand between documents: neither %-%-bos nor %-%-eos is given')
    base.file_write(dir .. '/model/tokenizer_config.json',
      '{"eos_token": {"content": "<|endoftext|>"}, "bos_token": null}')
    out('told', {})
    assert.is_true(T.equal(T.tensor(expected(), { dtype = 'int64' }), (held(dir .. '/told'))))
    out('plain', { bos = 'none', eos = 'none' })
    assert.equal(#expected() - 101, (held(dir .. '/plain')):numel())
    base.file_write(dir .. '/model/tokenizer_config.json', 'no')
    assert.error_matches(function() out('none', {}) end, "tokenizer_config.json' is not JSON")
  end)

  -- What pyarrow writes: two columns, row groups of 7, texts compressed.
  local parquet = [[
import json, sys
import pyarrow as pa, pyarrow.parquet as pq
folder = sys.argv[1]
rows = [json.loads(line) for line in open(folder + "/corpus/a.jsonl") if line.strip()]
texts = [row["text"] for row in rows]
table = pa.table({"id": [row["id"] for row in rows], "text": texts,
                  "large": pa.array(texts, pa.large_string())})
pq.write_table(table, folder + "/texts.parquet", row_group_size=7, compression="zstd")
pq.write_table(pa.table({"text": ["a", None]}), folder + "/null.parquet")
pq.write_table(table.slice(0, 0), folder + "/empty.parquet")
whole = open(folder + "/texts.parquet", "rb").read()
open(folder + "/cut.parquet", "wb").write(whole[:-9])
damaged = bytearray(whole)
damaged[len(whole) // 3:len(whole) // 3 + 200] = bytes(200)
open(folder + "/damaged.parquet", "wb").write(damaged)
]]

  it('reads the texts of Parquet files by row groups', function()
    local python = require 'tests.equivalence.pytorch.python'
    local missing = python.lacks 'pyarrow'
    if missing then
      base.file_write(dir .. '/none.parquet', '')
      local ok, err = pcall(prepare, { out = dir .. '/x', input = { dir .. '/none.parquet' } })
      os.execute(("rm -rf '%s/x'"):format(dir))
      assert.is_false(ok)
      assert.matches("none.parquet' is a Parquet file, for which this program has no library: ",
        err.message)
      return pending(missing)
    end
    base.file_write(dir .. '/parquet.py', parquet)
    local said, exit = python.shell(("'%s' '%s/parquet.py' '%s'"):format(python.binary, dir, dir))
    assert.equal('0', exit, said)
    prepare { out = dir .. '/lines', input = { dir .. '/corpus/a.jsonl' } }
    for i, options in ipairs { {}, { piece_mib = 1 / 1024, threads = 3 }, { field = 'large' } } do
      options.out, options.input = dir .. '/parquet' .. i, { dir .. '/texts.parquet' }
      assert.matches('tokens of 100 documents in ' .. (i == 2 and '%d+' or 1), prepare(options))
      assert.is_true(T.equal((held(dir .. '/lines')), (held(options.out))))
    end
    local files = base.json_decode(base.file_read(dir .. '/parquet2/tokens.json')).files
    assert.is_true(#files > 3)
    local function bad(name, field)
      local ok, err = pcall(prepare, { out = dir .. '/bad', input = { dir .. '/' .. name },
        field = field })
      os.execute(("rm -rf '%s/bad'"):format(dir))
      assert.is_false(ok)
      return err.message
    end
    assert.matches("row 1 of '.*null.parquet' has no text in its column 'text'",
      bad 'null.parquet')
    assert.matches("has no column 'body'; it has 'id', 'text', 'large'",
      bad('texts.parquet', 'body'))
    assert.matches("column 'id' of '.*' holds int64; expected texts", bad('texts.parquet', 'id'))
    assert.matches("cut.parquet' is no Parquet file that can be read: ", bad 'cut.parquet')
    assert.matches("damaged.parquet' is no Parquet file that can be read: ", bad 'damaged.parquet')
    prepare { out = dir .. '/hollow parquet', input = { dir .. '/empty.parquet' } }
  end)

  it('says what is wrong with the input, and where', function()
    local function bad(name, bytes, options)
      base.file_write(dir .. '/' .. name, bytes)
      options = options or {}
      options.out, options.input = os.tmpname() .. '.d', { dir .. '/' .. name }
      local ok, err = pcall(prepare, options)
      os.execute("rm -rf '" .. options.out .. "'")
      assert.is_false(ok)
      return err.message
    end
    assert.matches("the line at byte 17 of '.*bad.jsonl' is not JSON: ",
      bad('bad.jsonl', '{"text": "fine"}\n{"text": "cut'))
    assert.matches("has no text in its field 'text'", bad('bad.jsonl', '{"txt": "a"}\n'))
    assert.matches("has no text in its field 'body'",
      bad('bad.jsonl', '{"text": "a"}\n', { field = 'body' }))
    assert.matches('is array; expected an object', bad('bad.jsonl', '[1]\n'))
    assert.matches("the text is not UTF%-8: byte 1 is 0xff %(in '.*bad.txt'%)",
      bad('bad.txt', 'a\255'))
    assert.matches("%-%-eos '<s>' is no token of", bad('a.txt', 'a', { eos = '<s>' }))
    assert.error_matches(function() prepare { out = dir .. '/x', input = { dir .. '/none' } } end,
      "cannot read '.*none'")
    assert.error_matches(function() prepare { out = dir .. '/x', input = {} } end, 'no input; ')
    base.make_folder(dir .. '/hollow')
    assert.error_matches(function() prepare { out = dir .. '/x', input = { dir .. '/hollow' } } end,
      'has no .txt, .jsonl or .parquet file')
    assert.error_matches(function() prepare {} end, '%-%-out is missing')
    assert.error_matches(function() prepare { out = dir .. '/x', tokenizer = false } end,
      '%-%-tokenizer is missing')
    assert.error_matches(function() prepare { action = 'merge' } end,
      "unknown action 'merge'; expected prepare")
  end)
end)

describe('a folder of tokens', function()
  it('gives windows across its files, of the block that it was prepared for', function()
    local out = dir .. '/blocks'
    prepare { out = out, piece_mib = 1 / 1024, block = 16 }
    local set = nnscaler.data.tokens(out, { validation = 0, sampling = 'epoch' })
    assert.equal(16, set.block)
    local all, loader = expected(), set:training_loader { batch = 1, seed = 3 }
    for n = 0, loader.per_epoch - 1 do
      local sample, start = loader:get(n), loader:ids(n)[1]
      for i = 0, 15 do
        assert.equal(all[start + i + 1], sample.x[0][i]:item())
        assert.equal(all[start + i + 2], sample.y[0][i]:item())
      end
    end
    local vocabulary = set:vocabulary()
    assert.equal('tokenizer', vocabulary.type)
    assert.same(code:encode 'ho ho', tokenizer(vocabulary.path):encode 'ho ho')
  end)

  it('is refused where it is not whole', function()
    local function tokens() nnscaler.data.tokens(dir .. '/one', { block = 8 }) end
    local index = base.file_read(dir .. '/one/tokens.json')
    local function changed(from, to)
      base.file_write(dir .. '/one/tokens.json', (index:gsub(from, to, 1)))
    end
    changed('"tokens": %d+,', '"tokens": 5,')
    assert.error_matches(tokens, "says 5 tokens; its files hold %d+")
    changed('"version": 1', '"version": 2')
    assert.error_matches(tokens, 'has version 2; expected 1')
    changed('"tokens%-000000.bin"', '"../tokens-000000.bin"')
    assert.error_matches(tokens, "names the file '../tokens%-000000.bin'; expected one beside it")
    changed('{', '')
    assert.error_matches(tokens, 'is not the index of a folder of tokens')
    os.remove(dir .. '/one/tokens.json')
    assert.error_matches(tokens, 'has no tokens.json')
  end)

  it('is refused for a model with a smaller vocabulary', function()
    local GPT = require 'nnscaler.models.gpt'
    local trainer = nnscaler.Trainer({
      model = function()
        return GPT { vocab = 100, layers = 1, heads = 1, width = 4, block = 8 }
      end,
      dataset = nnscaler.data.tokens(dir .. '/both', { block = 8 }), micro_batch_size = 2,
      max_train_steps = 1, optimizer = { type = 'adamw' }, checkpoint = { no_save = true },
    })
    assert.error_matches(function() trainer:run() end,
      ('the data have a vocabulary of %d, the model one of 100'):format(code.vocab))
  end)
end)
