--- `nnscaler diff`: right plans do not differ; of a fault in a generated program it names the
--- operator; a run recorded before is a side like any other; what it cannot compare it refuses. All
--- pairs of plans and all faults are in tests/long/diff_spec.lua.
local base = require 'nnscaler._C.base'
local differences = require 'tests.cli.support.differences'
local faults = require 'tests.cli.support.planted'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
teardown(remove)

local recorded = folder .. '/one'

local function diff(arguments) return shell.nnscaler('diff ' .. arguments) end

-- Writes a recipe of a layer and what its forward returns; returns its path.
local function recipe(name, forward)
  local path = folder .. '/' .. name
  base.file_write(path, ([[
local nnscaler, nn = require 'nnscaler', require 'nnscaler.nn'
local Model = nn.class 'Model'
function Model:init() self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4) end
function Model:forward(s)
  %s
end
return { model = function() return Model() end,
  dataset = nnscaler.data.random_samples { size = 64, width = 4, seed = 3 }, micro_batch_size = 4,
  max_train_steps = 3, optimizer = { type = 'sgd', args = { lr = 0.1 } },
  checkpoint = { no_save = true }, enable_progress_bar = false }
]]):format(forward))
  return path
end

local plain = 'return self.fc(s.x):square():mean()'

describe('nnscaler diff', function()
  setup(function() differences.record(recorded) end)

  for _, pair in ipairs(faults.pairs.quick) do
    it(('finds no difference between %s and %s'):format(pair[1], pair[2]), function()
      local said, code = differences.of_plans(differences.plans[pair[1]],
        differences.plans[pair[2]])
      assert.equal(0, code, said)
      assert.matches('No difference in 1 step%(s%): %d%d+ values, %d%d+ gradients and %d+ weights',
        said)
      assert.not_matches('lie whole in neither run', said)
    end)
  end

  for _, fault in ipairs(faults.list) do
    if fault.quick then
      it('names the operator of ' .. fault.what, function()
        faults.check(fault, recorded, folder)
      end)
    end
  end

  it('says what docs/debugging.md shows', function()
    local page = base.file_read 'docs/debugging.md'
    local command, shown = page:match '```sh\nnnscaler (.-)\n```\n\n```\n(.-)\n```'
    local said, code = shell.nnscaler((command:gsub('\\\n', ' ')) .. ' --log-level error')
    assert.equal(0, code, said)
    local function without_rounding(text) return (text:gsub('%S+ of a norm', '# of a norm')) end
    assert.equal(without_rounding(shown), (without_rounding(said):gsub('%s*$', '')))
  end)

  it('says which weights differ at the beginning', function()
    local path = recipe('seeds.lua', plain)
    local said, code = diff(path .. ' --a seed=1 --b seed=2 --steps 1')
    assert.equal(1, code, said)
    assert.matches('2 of the first weights differ, first fc%.weight by %S+ of its norm: B goes on '
      .. 'with those of A%.', said)
    assert.matches('\nSamples differ: step 1', said) -- they are shuffled by the seed
  end)

  it('says which samples differ', function()
    local path = recipe('samples.lua', plain)
    base.file_write(folder .. '/other.lua',
      (base.file_read(path):gsub('seed = 3', 'seed = 7')))
    local said, code = diff(('%s %s/other.lua --steps 1'):format(path, folder))
    assert.equal(1, code, said)
    assert.matches('\nSamples differ: step 1, micro%-batch 0\n  input      %S*x\n', said)
  end)

  it('compares two versions of a model', function()
    local said, code = diff(('%s %s --steps 1'):format(recipe('before.lua', plain),
      recipe('after.lua', 'return self.fc(s.x):relu():square():mean()')))
    assert.equal(1, code, said)
    assert.matches('\nB alone has aten::relu at %S*after%.lua:5, module the model\n', said)
    assert.matches('\nForward differs first: step 1, micro%-batch 0\n  operator   aten::\n?', said)
  end)

  it('leaves out values of running buffers where scale units differ', function()
    local path = recipe('running.lua', 'return self.norm(self.fc(s.x)):square():mean()')
    local said, code = diff(path .. ' global_batch_size=8 --b compute_config.runtime_ngpus=2')
    assert.equal(0, code, said)
    assert.matches('\n%d+ values of running buffers were not compared', said)
  end)

  it('compares two precisions by the coarser one', function()
    local said, code = diff(recipe('precisions.lua', plain)
      .. ' --a precision=fp64 --b precision=fp32 --steps 1')
    assert.equal(0, code, said)
    assert.matches('precision fp64\n.*precision fp32\n', said)
    local worst = tonumber(said:match 'largest difference is (%S+) of a norm')
    assert.is_true(worst > 1e-12 and worst < 1e-6, said)
    said, code = diff(recipe('precisions.lua', plain)
      .. ' --a precision=fp64 --b precision=fp32 --steps 1 --limit 1e-12')
    assert.equal(1, code, said)
  end)

  it('reads what ranks that are processes have recorded', function()
    local path = recipe('processes.lua', plain)
    local said, code = shell.nnscaler(('run %s -n 2 global_batch_size=8 --record %s/two '
      .. '--record-steps 2'):format(path, folder))
    assert.equal(0, code, said)
    assert.matches('Recorded 2 step%(s%) in ', said)
    assert.matches('Reached max train steps%(3%)', said)
    said, code = diff(('%s/two %s global_batch_size=8'):format(folder, path))
    assert.equal(0, code, said)
    assert.matches('2 scale unit%(s%), precision none\nB .*1 scale unit%(s%), precision none\n',
      said)
    assert.matches('No difference in 2 step', said)
  end)

  it('refuses what it cannot compare', function()
    local path = recipe('refused.lua', plain)
    local function refused(arguments, pattern, of)
      local said, code = (of or diff)(arguments)
      assert.matches(pattern, said)
      assert.not_equal(0, code)
    end
    refused('nothing.txt', "%[cli%.diff%] A is 'nothing%.txt', neither a job %(%.lua, %.yaml%) nor "
      .. 'a recording')
    refused(('%s %s/nothing'):format(path, folder), "%[cli%.diff%] B is '%S+', neither a job")
    refused(('%s %s --a seed=1'):format(recorded, path),
      "%[cli%.diff%] A is the recording '%S+', which %-%-a cannot change")
    refused(path .. ' --b eager=true', '%[diff%.job%] eager=true has no program')
    refused(path .. ' --b compute_config.runtime_ngpus=2',
      '%[diff%.batch%] global_batch_size is 4 in A and 8 in B.*hint: set micro_batch_size=4 '
      .. 'global_batch_size=8 for both')
    refused(('%s %s'):format(recorded, path), '%[diff%.batch%] global_batch_size is 8 in A and 4')
    local run = function(arguments) return shell.nnscaler('run ' .. path .. ' ' .. arguments) end
    refused('--record ' .. recorded, "%[record%.folder%] '%S+' holds a recording; expected a new "
      .. 'folder', run)
    refused('--record-steps 2', '%[cli%.run%] %-%-record%-steps says how many steps', run)
    refused('--record x --max-restarts 1', '%[cli%.run%] %-%-record does not go with', run)
    refused('--record x eager=true', '%[cli%.run%] eager=true has no program', run)
  end)

  it('refuses a recording that is damaged', function()
    local bad = folder .. '/bad'
    shell.run(('cp -r %s %s'):format(recorded, bad))
    for _, text in ipairs { '{"parts": 7}', '{"parts": [{"kind": "value"}]}' } do
      base.file_write(bad .. '/step.1.0.json', text)
      local said, code = diff(('%s %s'):format(bad, recorded))
      assert.equal(1, code, said)
      assert.matches('%[diff%.recording%] a recording holds what no run writes: ', said)
    end
  end)
end)
