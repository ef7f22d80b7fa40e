-- From texts to a model folder of the transformers library and back, with the commands that the
-- user types; and fine-tuning of such a folder, on one rank and on two.
local base = require 'nnscaler._C.base'
local python = require 'tests.equivalence.pytorch.python'
local shell = require 'tests.cli.support.shell'

local nnscaler, here = shell.binary, require('nnscaler._C.checkpoint').real_path '.'
local folder, remove = shell.folder()
teardown(remove)

local function file(name, text) base.file_write(folder .. '/' .. name, text) end

-- Runs the program in the folder; returns what it said. Its exit code must be 0, or `code`.
local function run(arguments, code)
  local said, exit = shell.run(("cd '%s' && OMP_WAIT_POLICY=passive '%s' %s"):format(folder,
    nnscaler, arguments))
  assert.equal(code or 0, exit, said)
  return said
end

local function losses(name)
  local out = {}
  for line in base.file_read(folder .. '/' .. name):gmatch '[^\n]+' do
    out[#out + 1] = base.json_decode(line).train_loss
  end
  return out
end

file('scratch.lua', [[
local nnscaler = require 'nnscaler'
local data = nnscaler.data.tokens('tokens', { validation = 0 })
return {
  model = function()
    return require 'nnscaler.models.llama' { vocab = data.vocab, layers = 1, heads = 2,
      kv_heads = 1, width = 16, hidden = 24, block = data.block, tied = true }
  end,
  dataset = data, micro_batch_size = 2, max_train_steps = 3, threads = 1,
  optimizer = { type = 'adamw', args = { lr = 1e-2 } }, enable_progress_bar = false,
}
]])
file('tune.lua', [[
local nnscaler = require 'nnscaler'
local p = nnscaler.params { folder = { '', 'of the model' } }
return {
  model = function() return nnscaler.from_pretrained(p.folder, { dtype = 'float64' }) end,
  dataset = nnscaler.data.random_tokens { vocab = 41, block = 16, size = 64 },
  micro_batch_size = 2, max_train_steps = 3, threads = 1,
  global_batch_size = 4, optimizer = { type = 'adamw', args = { lr = 1e-2 } },
  enable_progress_bar = false, checkpoint = { no_save = true },
}
]])
local lines = {}
for i = 1, 60 do lines[i] = base.json_encode { text = ('line %d of the corpus'):format(i) } end
file('corpus.jsonl', table.concat(lines, '\n'))

describe('from texts to a model folder', function()
  it('prepares, trains, exports, and both generate one text', function()
    local said = run(("data prepare corpus.jsonl --tokenizer %s/tests/lua/tokenizers/gpt2.json "
      .. "--out tokens --eos '<|endoftext|>' --block 16"):format(here))
    assert.matches('^tokens: [%d,]+ tokens of 60 documents in 1 file%(s%), vocabulary 420, ', said)
    run 'run scratch.lua'
    said = run 'checkpoint export checkpoints/last exported --shard-mib 1'
    assert.matches('^exported: 11 tensors, ', said)
    local sample = " --prompt 'line 7' --tokens 12 --temperature 0"
    local text = run('generate checkpoints/last' .. sample)
    assert.equal(text, run('generate exported' .. sample))
    assert.matches('^line 7.', text)
  end)

  it('holds logits against the transformers library', function()
    local lacks = python.lacks 'transformers'
    local refusal = "checkpoint check exported --python "
    assert.matches("'no%-python' could not compute the logits of 'exported': .*not found",
      run(refusal .. 'no-python', 2))
    base.file_write(folder .. '/other.py', [[
import sys, torch
from safetensors.torch import save_file
rows, time, vocab = map(int, sys.argv[5:])
save_file({"logits": torch.zeros(rows, time, vocab)}, sys.argv[4])
print("transformers 0")
]])
    base.file_write(folder .. '/other', ("#!/bin/sh\nexec '%s' '%s/other.py' \"$@\"\n")
      :format(python.binary, folder))
    os.execute(("chmod +x '%s/other'"):format(folder))
    if not python.missing then
      assert.matches("the logits of 'exported' are .* off those of transformers 0; "
        .. 'expected at most 1e%-05', run(refusal .. './other', 1))
    end
    if lacks then return pending(lacks) end
    local found = 'logits of 2 texts of 16 tokens: at most %S+ off transformers %d'
    assert.matches(found, run(refusal .. python.binary))
    assert.matches(found, run(('checkpoint export checkpoints/last checked --dtype bfloat16 '
      .. '--check --python %s'):format(python.binary)))
  end)

  it('goes on from the folder in the recipe of Llama', function()
    local recipe = ('run %s/recipes/llama3.lua data=tokens sequence_length=16 '
      .. 'max_train_steps=2 threads=1 '
      .. 'max_val_steps=1 checkpoint.no_save=true enable_progress_bar=false '):format(here)
    assert.matches('Parameters: 8,688', run(recipe .. 'from=exported'))
    assert.matches('the data have a vocabulary of 420, the model one of 41',
      run(recipe .. ('from=%s/tests/lua/hugging_face/llama'):format(here), 1))
  end)

  it('trains the preset mini on such tokens, and plans 8b for them', function()
    local said = run(('run %s/recipes/llama3.lua preset=mini data=tokens '
      .. 'sequence_length=16 -n 2 threads=1 '
      .. 'pas_policy=megatron compute_config.plan_ngpus=2 max_train_steps=2 max_val_steps=1 '
      .. 'checkpoint.no_save=true enable_progress_bar=false'):format(here))
    assert.matches('Parameters: 1,584,384', said)
    said = run(('compile %s/configs/llama3_8b.yaml vars.data=tokens vars.block=16 vars.devices=4 '
      .. 'compute_config.runtime_ngpus=4 dataset.args.validation=0.1'):format(here))
    assert.matches('4 programs written', said)
    -- of 8.03 billion weights in bfloat16 a fourth (2^30 bytes)
    assert.matches('weights 3%.7 GB', said)
  end)

  it('cuts a model folder to its first layers', function()
    local llama = ('checkpoint export %s/tests/lua/hugging_face/llama '):format(here)
    assert.matches('cut: 12 tensors, ', run(llama .. 'cut --layers 1'))
    run(llama .. 'whole --dtype bfloat16')
    local function read(name)
      local config = base.json_decode(base.file_read(folder .. '/' .. name .. '/config.json'))
      return config.num_hidden_layers, config.dtype
    end
    assert.equal(1, (read 'cut'))
    assert.same({ 2, 'bfloat16' }, { read 'whole' })
    file('same.lua', ([[
local hugging_face = require 'nnscaler.hugging_face'
local from, cut = hugging_face.weights '%s/tests/lua/hugging_face/llama', hugging_face.weights 'cut'
for _, name in ipairs(cut.names) do
  if not from:read(name):equal(cut:read(name)) then print('other', name) end
end
print(#cut.names)
]]):format(here))
    assert.equal('12', run('same.lua'):match '%S+')
    assert.matches("layers = 9; '.*llama' has 2", run(llama .. 'more --layers 9', 2))
    assert.matches("%-%-layers cuts model folders; 'checkpoints/last' is none",
      run('checkpoint export checkpoints/last more --layers 1', 2))
  end)

  it('says what it cannot write', function()
    assert.matches("'exported' is there already; expected a folder to make",
      run('checkpoint export checkpoints/last exported', 2))
    assert.matches('export needs the folder to write', run('checkpoint export checkpoints/last', 2))
  end)

  it('refuses a tokenizer with more tokens than the model', function()
    os.execute(("cp -r '%s/tests/lua/hugging_face/llama' '%s/small'"):format(here, folder))
    assert.matches('the folder .* has no tokenizer.json and no tokenizer.model',
      run('generate small --prompt x', 2))
    os.execute(("cp '%s/tests/lua/tokenizers/gpt2.json' '%s/small/tokenizer.json'"):format(here,
      folder))
    assert.matches("tokenizer.json' has 420 tokens, the model 41",
      run('generate small --prompt x', 1))
  end)
end)

describe('fine-tuning', function()
  for _, name in ipairs { 'llama', 'gpt2' } do
    it('of ' .. name .. ' reads on each rank its part of the weights', function()
      local job = ("run tune.lua folder=%s/tests/lua/hugging_face/%s metrics=%s"):format(here, name,
        '%s.jsonl %s')
      run(job:format('one', ''))
      local one = losses 'one.jsonl'
      assert.equal(3, #one)
      for _, plan in ipairs { 'megatron', 'fsdp' } do
        run(job:format(plan, ('-n 2 pas_policy=%s'):format(plan)
          .. (plan == 'megatron' and ' compute_config.plan_ngpus=2' or '')))
        for i, loss in ipairs(losses(plan .. '.jsonl')) do
          assert.is_true(math.abs(loss - one[i]) <= 1e-10 * math.abs(one[i]),
            ('%s, step %d: %.17g, on one rank %.17g'):format(plan, i, loss, one[i]))
        end
      end
    end)
  end

  it('with checkpoint.init_from gives the same start', function()
    file('init.lua', [[
local nnscaler = require 'nnscaler'
local GPT = require 'nnscaler.models.gpt'
return {
  model = function()
    return GPT { vocab = 41, layers = 2, heads = 4, width = 16, block = 32, bias = true,
      gelu = 'tanh' }
  end,
  precision = 'fp64', dataset = nnscaler.data.random_tokens { vocab = 41, block = 16, size = 64 },
  micro_batch_size = 2, global_batch_size = 4, max_train_steps = 3, threads = 1,
  optimizer = { type = 'adamw', args = { lr = 1e-2 } }, enable_progress_bar = false,
  checkpoint = { no_save = true },
}
]])
    run(('run init.lua metrics=init.jsonl checkpoint.init_from=%s/tests/lua/hugging_face/gpt2')
      :format(here))
    run(('run tune.lua metrics=tune.jsonl folder=%s/tests/lua/hugging_face/gpt2'):format(here))
    assert.same(losses 'tune.jsonl', losses 'init.jsonl')
  end)
end)

describe('memory', function()
  it('holds little more than the part of the weights that is asked for', function()
    file('big.lua', [[
local T = require 'nnscaler.tensor'
local export = require 'nnscaler.hugging_face.export'
local Llama = require 'nnscaler.models.llama'
export.write('big', {
  model = Llama { vocab = 16000, layers = 2, heads = 8, width = 1024, hidden = 2816, block = 16 },
  read = function(name)
    local shape = name:find 'norm' and { 1024 } or name:find '_tokens' and { 16000, 1024 }
      or name:find 'lm_head' and { 16000, 1024 } or name:find 'down' and { 1024, 2816 }
      or name:find 'mlp' and { 2816, 1024 } or { 1024, 1024 }
    return T.ones(shape)
  end,
})
]])
    file('half.lua', [[
local nnscaler = require 'nnscaler'
local function peak()
  local file = io.open '/proc/self/status'
  local text = file:read '*a'
  file:close()
  return tonumber(text:match 'VmHWM:%s+(%d+)')
end
local model = nnscaler.from_pretrained 'big'
local before, held, kept = peak(), 0, {}
for i, entry in ipairs(model:named_parameters()) do
  local start, shape = {}, entry.param.shape
  for d = 1, #shape do start[d] = 0 end
  local cut = #shape == 2 and i % 2 + 1 or 1 -- rows of one, columns of the next
  start[cut], shape[cut] = shape[cut] / 2, shape[cut] / 2
  kept[i] = entry.param:draw_part(0, start, shape)
  held = held + kept[i]:numel() * 4 / 1024
end
print(peak() - before, held)
]])
    run 'big.lua'
    local more, held = run('half.lua'):match '([%d.]+)%s+([%d.]+)'
    assert.is_true(tonumber(held) > 100 * 1024)
    assert.is_true(tonumber(more) <= 1.2 * held, ('%s KiB more for %s KiB'):format(more, held))
  end)
end)
