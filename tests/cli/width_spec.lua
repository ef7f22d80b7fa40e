--- Jobs that leave the plan to the planner, as they do unless they say more: one device a plan
--- where a step fits on each, else the fewest with which there is one. What is learnt is the same.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
teardown(remove)

local gpt = 'recipes/nanogpt.lua preset=tiny layers=2 width=32 heads=2 block=16 dropout=0 '
  .. 'precision=fp64 micro_batch_size=4 max_train_steps=3 max_val_steps=1 '
  .. 'checkpoint.no_save=true threads=1 comm.backend=local gen_savedir=' .. folder .. '/gen '

local function losses(path)
  local list = {}
  for line in io.lines(path) do
    local row = base.json_decode(line)
    if row.train_loss then list[#list + 1] = row.train_loss end
  end
  return list
end

-- Trains; gives what was logged and the losses.
local function train(changes)
  local path = folder .. '/m.jsonl'
  os.remove(path)
  local said, code = shell.nnscaler('run ' .. gpt .. changes .. ' --metrics ' .. path)
  assert.equal(0, code, said)
  local list = losses(path)
  assert.equal(3, #list, said)
  return said, list
end

local function same(a, b)
  for i, x in ipairs(a) do assert.is_true(math.abs(x - b[i]) <= 1e-11 * math.abs(x)) end
end

describe('a job without a policy', function()
  it('is data parallel where a step fits on each device', function()
    local _, want = train '-n 2 pas_policy=dp'
    local said, got = train '-n 2'
    assert.matches('autodist: a whole step fits on each device %(less than %S+ MB of %S+ GB%)',
      said)
    assert.matches('policy: dp, 1 device%(s%) a plan, 2 scale unit%(s%), global batch: 8 samples',
      said)
    assert.same(want, got)
  end)

  it('has the fewest devices that fit, with the samples of before, and the same again', function()
    local _, want = train '-n 4 pas_policy=dp'
    local limit = '-n 4 compute_config.use_zero=0 compute_config.memory_gb=0.00074 '
      .. '--log-level debug'
    local said, got = train(limit)
    assert.matches('autodist: 2 device%(s%) a plan, the fewest that fit in %S+ KB a device', said)
    assert.matches('policy: autodist, 2 device%(s%) a plan, 2 scale unit%(s%), global batch: 16 '
      .. 'samples', said)
    assert.matches('Program of training: 1 traces, 1 policies', said)
    same(want, got)
    local again, once_more = train(limit)
    assert.matches('autodist: 2 device%(s%) a plan', again)
    assert.matches('Program of training: 1 traces, 0 policies', again)
    assert.same(got, once_more)
  end)

  it('computes again what one device has no room for', function()
    local _, want = train ''
    local said, got = train 'compute_config.memory_gb=0.00125'
    same(want, got)
    assert.matches('Memory: at most', said)
  end)

  it('has as many devices as its batch lets share a step', function()
    local said = train '-n 2 global_batch_size=4'
    assert.matches('policy: autodist, 2 device%(s%) a plan, 1 scale unit%(s%), global batch: 4',
      said)
  end)

  it('is compiled for the devices that a run has', function()
    local out, code = shell.nnscaler('compile ' .. gpt .. 'compute_config.runtime_ngpus=4 '
      .. 'compute_config.use_zero=0 '
      .. 'compute_config.memory_gb=0.00074 gen_savedir=' .. folder .. '/compiled')
    assert.equal(0, code, out)
    local path = out:match '(%S+/gencode0%.lua)' or out:match '(%S+%.lua)'
    assert.matches('"compute_config.plan_ngpus":2', base.file_read(path, 'test'))
  end)

  it('is refused where nothing fits, with where to look', function()
    local said, code = shell.nnscaler('run ' .. gpt .. '-n 2 compute_config.memory_gb=0.0001')
    assert.equal(1, code, said)
    assert.matches('no plan of 2 device%(s%) keeps 104.9 KiB a device', said)
    assert.matches('hint: more ranks, a smaller micro_batch_size or precision=bf16 take less', said)
    assert.matches('nnscaler plan with %-%-world 2', said)
  end)

  it('says beside other plans what a run takes', function()
    local out, code = shell.nnscaler('plan recipes/nanogpt.lua preset=tiny --world 2 '
      .. '--hardware h100')
    assert.equal(0, code, out)
    assert.matches('\n%S? *autodist +1 ', out)
  end)
end)
