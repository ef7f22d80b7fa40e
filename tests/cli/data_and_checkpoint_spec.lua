-- The program as the user starts it: what it says, and with which exit code, about data it cannot
-- use and checkpoints it cannot load.
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'

local binary = require('nnscaler._C.checkpoint').real_path '/proc/self/exe'
local root = os.tmpname() .. '.d'
base.make_folder(root)
teardown(function() os.execute("rm -rf '" .. root .. "'") end)

local function file(name, bytes)
  base.file_write(root .. '/' .. name, bytes)
  return root .. '/' .. name
end

-- Runs the program; returns all it wrote and its exit code. `before` is shell text.
local function nnscaler(arguments, before)
  local pipe = io.popen(("(%s '%s' %s) 2>&1; echo \"exit $?\""):format(before or '', binary,
    arguments))
  local out = pipe:read '*a'
  pipe:close()
  local text, code = out:match '^(.-)exit (%d+)\n$'
  return text, tonumber(code)
end

local recipe = file('recipe.lua', [[
local nnscaler = require 'nnscaler'
local GPT = require 'nnscaler.models.gpt'
local p = nnscaler.params {
  data = { 'text.txt', 'text or token file' }, vocab = { 0, 'of a token file' },
  width = { 8, 'embedding width' }, block = { 8, 'context' },
}
local data
if p.data:match '%.bin$' then
  data = nnscaler.data.tokens(p.data, { block = p.block, vocab = p.vocab })
else
  data = nnscaler.data.characters(p.data, { block = p.block })
end
return {
  model = function()
    return GPT { vocab = data.vocab, layers = 1, heads = 2, width = p.width, block = p.block }
  end,
  dataset = data, micro_batch_size = 4, max_train_steps = 4, eager = true, threads = 1,
  optimizer = { type = 'adamw' }, enable_progress_bar = false,
  checkpoint = { every_n_train_steps = 2 },
}
]])
local text = file('text.txt', ('all the world is a stage, and all the men and women\n'):rep(20))

describe('a run on data that cannot be used', function()
  local function run(arguments)
    return nnscaler(("run '%s' checkpoint.no_save=true %s"):format(recipe, arguments))
  end

  it('names a file that is not there', function()
    local said, code = run(("data='%s/none.txt'"):format(root))
    assert.matches("%[data.characters%] cannot read '.*/none.txt': No such file", said)
    assert.equal(2, code)
  end)

  it('refuses an empty text', function()
    local said, code = run(("data='%s'"):format(file('empty.txt', '')))
    assert.matches("'.*/empty.txt' is empty; expected text", said)
    assert.equal(1, code)
  end)

  it('names both numbers when a text is shorter than a block', function()
    local said, code = run(("data='%s'"):format(file('short.txt', 'to be')))
    assert.matches('has 5 tokens, 4 of them to train on; a block of 8 needs at least 9', said)
    assert.equal(1, code)
    said, code = run(("data='%s' block=0"):format(text))
    assert.matches('block = 0; expected an integer of at least 1', said)
    assert.equal(2, code)
  end)

  it('names the token that is beyond the vocabulary, and where', function()
    local ids = {}
    for i = 1, 400 do ids[i] = string.char(i % 100, 0) end
    local said, code = run(("data='%s' vocab=50"):format(file('ids.bin', table.concat(ids))))
    assert.matches("token %d+ of '.*ids.bin' is %d%d; expected below the vocabulary of 50", said)
    assert.equal(1, code)
  end)
end)

describe('a checkpoint on the command line', function()
  local dir = root .. '/run'

  local function run(arguments, before)
    return nnscaler(("run '%s' data='%s' checkpoint.save_dir='%s' %s"):format(recipe, text, dir,
      arguments or ''), before)
  end

  local said, code = run()
  assert(code == 0, said)

  local function damaged(name, change)
    local path = dir .. '/0000-0004/' .. name
    local whole = base.file_read(path)
    base.file_write(path, change(whole))
    local out, exit = run 'checkpoint.resume_from=last max_train_steps=6'
    local shown, shown_exit = nnscaler(("checkpoint inspect '%s'"):format(dir))
    base.file_write(path, whole)
    assert.equal(1, exit)
    assert.equal(1, shown_exit)
    assert.equal(2, #checkpoint.list(dir))
    return out, shown
  end

  it('is shown by inspect', function()
    said, code = nnscaler(("checkpoint inspect '%s/last'"):format(dir))
    assert.equal(0, code)
    assert.matches('epoch 0, step 4, train loss %d', said)
    assert.matches('transformer.wte.weight +%[%d+, 8%] +float32 +%d+ +[%d.]+ %a+ +exp_avg, '
      .. 'exp_avg_sq', said)
    assert.matches('lm_head.weight +%= transformer.wte.weight', said)
    said, code = nnscaler(("checkpoint inspect '%s/none'"):format(dir))
    assert.equal(1, code)
    assert.matches("there is no checkpoint 'last' in '.*/none'", said)
  end)

  it('that is truncated is named, and not loaded', function()
    local resumed, shown = damaged('model.safetensors', function(b) return b:sub(1, -9) end)
    assert.matches("0000%-0004' cannot be loaded; nothing was changed:", resumed)
    assert.matches("model.safetensors' is not a valid safetensors file: .*truncated", resumed)
    assert.matches('truncated', shown)
    resumed = damaged('optimizer.safetensors', function() return '' end)
    assert.matches("optimizer.safetensors' is not a valid safetensors file: it has 0 bytes",
      resumed)
  end)

  it('whose tensors are not those of the model is named tensor by tensor', function()
    said, code = run 'checkpoint.resume_from=last width=16'
    assert.equal(1, code)
    assert.matches('wrong shape: transformer.wte.weight is float32%[%d+, 8%], the model has '
      .. 'float32%[%d+, 16%]', said)
    said, code = run 'checkpoint.resume_from=last precision=fp64'
    assert.equal(1, code)
    assert.matches('wrong dtype: transformer.wte.weight is float32%[%d+, 8%], the model has '
      .. 'float64%[%d+, 8%]', said)
  end)

  it('that finds the disk full leaves the older one', function()
    local full = root .. '/full'
    -- A limit on the size of files stands in for a full disk: writes fail in the same way.
    local command = ("run '%s' data='%s' checkpoint.save_dir='%s' "):format(recipe, text, full)
    said, code = nnscaler(command .. 'stop_after_steps=2')
    assert(code == 0, said)
    command = command .. 'checkpoint.resume_from=last'
    said, code = nnscaler(command, "trap '' XFSZ; ulimit -f 2;")
    assert.equal(1, code)
    assert.matches("%[checkpoint.save%] cannot write '.*': File too large", said)
    assert.matches('the checkpoints before it are whole; the newest is .*0000%-0002', said)
    local names = table.concat(base.list_folder(full), ' ')
    assert.matches('^0000%-0002 best last', names) -- and nothing half written
    said, code = nnscaler(command)
    assert(code == 0, said)
  end)
end)
