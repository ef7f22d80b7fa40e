-- The commands of docs/llama3.md at toy size, and its plans: all of them train as one device does.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
teardown(remove)
local here = require('nnscaler._C.checkpoint').real_path '.'
local page = base.file_read 'docs/llama3.md'

local function run(arguments)
  local said, code = shell.run(("cd '%s' && OMP_WAIT_POLICY=passive '%s' %s"):format(folder,
    shell.binary, arguments))
  assert.equal(0, code, said)
  return said
end

-- The same command with few tokens and steps.
local function small(command)
  local toy = command:find '^run ' and ' threads=1 max_val_steps=1 enable_progress_bar=false' or ''
  return (command:gsub('block([= ])%d+', 'block%116'):gsub('recipes/', here .. '/%0')
    :gsub('max_train_steps=%d+', 'max_train_steps=2'):gsub('tokens 60', 'tokens 4')) .. toy
end

local function losses(settings)
  run(('run %s/recipes/llama3.lua from=llama_mini data=tokens sequence_length=16 '
    .. 'precision=fp64 threads=1 '
    .. 'max_train_steps=3 max_val_steps=1 global_batch_size=16 checkpoint.no_save=true '
    .. 'enable_progress_bar=false metrics=m.jsonl %s'):format(here, settings))
  local list = {}
  for line in base.file_read(folder .. '/m.jsonl'):gmatch '[^\n]+' do
    local row = base.json_decode(line)
    list[#list + 1] = row.train_loss
  end
  os.remove(folder .. '/m.jsonl')
  return list
end

describe('docs/llama3.md', function()
  setup(function()
    base.file_write(folder .. '/shakespeare.txt',
      base.file_read(require('nnscaler').data.shakespeare):sub(1, 40000))
    base.file_write(folder .. '/gpt2.json', base.file_read 'tests/lua/tokenizers/gpt2.json')
  end)

  it('has commands that run one after the other', function()
    local said = {}
    for command in page:gmatch '\n    %$ nnscaler ([^\n]+)' do
      said[#said + 1] = run(small(command))
    end
    assert.equal(10, #said)
    assert.matches('llama_mini: 39 tensors', said[5])
    assert.matches('Loss of llama3_debug', base.file_read(folder .. '/checkpoints/loss.svg'))
    assert.matches('llama_tuned: 39 tensors', said[9])
    assert.matches('^ROMEO:', said[10])
  end)

  local one
  local plans = { 'pas_policy=tp compute_config.plan_ngpus=2' }
  for settings in page:gmatch '\n| [^\n|]+ | `([^\n]+)` |' do
    if settings:find '^pas_config' then settings = plans[#plans] .. ' ' .. settings end
    plans[#plans + 1] = settings:gsub('global_batch_size=%d+', '')
  end
  for _, ranks in ipairs { 2, 4 } do
    for _, settings in ipairs(plans) do
      if ranks == 2 or settings:find 'sequence_parallel' then
        it(('trains as one device does: -n %d %s'):format(ranks, settings), function()
          one = one or losses ''
          local list = losses(('-n %d %s'):format(ranks, settings))
          assert.equal(3, #one)
          assert.equal(3, #list)
          for step, loss in ipairs(list) do
            assert.is_true(math.abs(loss - one[step]) <= 1e-11 * math.abs(one[step]),
              ('step %d: %.17g, on one device %.17g'):format(step, loss, one[step]))
          end
        end)
      end
    end
  end

  it('lists those plans', function() assert.equal(6, #plans) end)
end)
