-- Every recipe at toy size: one rank and two, under plans that cut it, have the same losses in
-- float64. docs/recipes.md tells what the recipes reach.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
teardown(remove)
local here = require('nnscaler._C.checkpoint').real_path '.'

local function run(arguments)
  local said, code = shell.run(("cd '%s' && OMP_WAIT_POLICY=passive '%s' %s"):format(folder,
    shell.binary, arguments))
  assert.equal(0, code, said)
  return said
end

local function losses(name)
  local out = {}
  for line in base.file_read(folder .. '/' .. name):gmatch '[^\n]+' do
    local row = base.json_decode(line)
    out[#out + 1] = row.train_loss or row.val_loss
  end
  return out
end

-- Tokens of a tokenizer with 420, and a GPT-2 for them.
local function prepare()
  local lines = {}
  for i = 1, 60 do lines[i] = base.json_encode { text = ('line %d of the corpus'):format(i) } end
  base.file_write(folder .. '/corpus.jsonl', table.concat(lines, '\n'))
  run(("data prepare corpus.jsonl --tokenizer %s/tests/lua/tokenizers/gpt2.json --out tokens "
    .. "--eos '<|endoftext|>' --block 16"):format(here))
  base.file_write(folder .. '/make.lua', [[
local T = require 'nnscaler.tensor'
local model = require 'nnscaler.models.gpt' { vocab = 420, layers = 2, heads = 2, width = 16,
  block = 16, bias = true, gelu = 'tanh' }
model:materialize(0)
local weights = {}
for _, entry in ipairs(model:named_parameters()) do weights[entry.name] = entry.param.data end
require 'nnscaler.hugging_face.export'.write('small', { model = model,
  read = function(name) return weights[name]:detach() end })
]])
  run 'make.lua'
end

local toy = 'layers=2 width=16 '
-- recipe, its settings, plans of two ranks
local cases = {
  { 'bert', toy .. 'block=16 micro_batch_size=4', { 'tp', 'pp' } },
  { 'bert', 'data=tokens layers=2 width=16 micro_batch_size=4 block=16', { 'megatron' } },
  { 'resnet', 'width=4 image=32 micro_batch_size=4', { 'tp', 'dp' } },
  { 'vit', toy .. 'image=16 micro_batch_size=4', { 'megatron', 'pp' } },
  { 'swin', 'width=8 image=16 micro_batch_size=4', { 'tp', 'dp' } },
  { 'unet', 'depth=2 width=4 image=16 micro_batch_size=4', { 'tp', 'dp' } },
  { 'gpt2', 'from=small block=16 dropout=0 micro_batch_size=2',
    { 'megatron', 'fsdp' } },
  { 'mixtral', toy .. 'block=8 experts=4 micro_batch_size=2', { 'megatron', 'fsdp' } },
  { 'deepseek', 'micro_batch_size=2', { 'megatron', 'pp' } },
  { 'mlp', 'hidden=16 layers=4 batch=4', { 'rannc', 'tp' } },
}

describe('recipes', function()
  setup(prepare)

  -- By specs of their own.
  local covered = { llama3 = true, nanogpt = true, quickstart = true, rannc_tutorial = true }
  local long = { llama3 = true, rannc_tutorial = true }
  for _, case in ipairs(cases) do
    local name, settings, plans = unpack(case)
    covered[name] = true
    it(('train alike on one rank and two: %s %s'):format(name, settings), function()
      local job = ('run %s/recipes/%s.lua %s precision=fp64 threads=1 max_train_steps=3 seed=1 '
        .. 'val_every_n_train_steps=3 max_val_steps=1 checkpoint.no_save=true '
        .. 'enable_progress_bar=false metrics=%s.jsonl'):format(here, name, settings, '%s')
      local micro = settings:match 'micro_batch_size=(%d+)' or settings:match 'batch=(%d+)'
      local total = ' global_batch_size=' .. 2 * micro
      run(job:format('one') .. total)
      local one = losses 'one.jsonl'
      assert.is_true(#one >= 3)
      for _, plan in ipairs(plans) do
        local whole = plan == 'dp' or plan == 'fsdp'
        run(job:format(plan) .. total .. (' -n 2 pas_policy=%s%s'):format(plan,
          whole and '' or ' compute_config.plan_ngpus=2'))
        local other = losses(plan .. '.jsonl')
        assert.equal(#one, #other)
        for step, loss in ipairs(other) do
          assert.is_true(math.abs(loss - one[step]) <= 1e-11 * math.abs(one[step]),
            ('%s, row %d: %.17g, on one rank %.17g'):format(plan, step, loss, one[step]))
        end
      end
    end)
  end

  it('are all tested, and told of in docs/recipes.md, in at most 80 lines each', function()
    local page = base.file_read 'docs/recipes.md'
    for _, file in ipairs(base.list_folder 'recipes') do
      local name = file:match '^(.*)%.lua$'
      assert.is_truthy(covered[name], name)
      assert.is_truthy(page:find(('| `%s`'):format(file), 1, true), name)
      local _, lines = base.file_read('recipes/' .. file):gsub('\n', '')
      assert.is_true(lines <= (long[name] and 80 or 60), name)
    end
  end)
end)
