--- `nnscaler run -n N` with ranks as threads: the losses and norms of one rank, under every policy;
--- they go on from each other's checkpoints.
local shell = require 'tests.cli.support.shell'
local training = require 'tests.cli.support.training'

local job = 'recipes/nanogpt.lua preset=tiny layers=2 width=32 block=16 precision=fp64 '
  .. 'max_val_steps=2 global_batch_size=8 dropout=0.1 threads=1 '
  .. 'comm.backend=local'

local runs = training.new(job)
local folder, near = runs.folder, training.near

local function train(name, more)
  local out, code = shell.nnscaler(runs.arguments(name, more))
  assert.equal(0, code, out)
  return runs.rows(name)
end

describe('several ranks', function()
  teardown(runs.remove)
  local want = train('one', 'max_train_steps=6')

  for _, case in ipairs {
    { 'dp', '-n 2 pas_policy=dp' }, { 'tp', '-n 2 pas_policy=tp' },
    { 'data', '-n 2 pas_policy=data' }, { 'fsdp', '-n 2 pas_policy=fsdp' },
    { 'pp', '-n 2 pas_policy=pp global_batch_size=8' },
    { 'hybrid', '-n 4 pas_policy=hybrid' },
    { 'tp_dp', '-n 4 pas_policy=tp compute_config.plan_ngpus=2' },
  } do
    it('train as one does: ' .. case[2], function()
      near(want, train(case[1], 'max_train_steps=6 ' .. case[2]))
    end)
  end

  it('go on from a checkpoint that another plan wrote', function()
    train('cross', 'max_train_steps=6 stop_after_steps=3 -n 2 pas_policy=tp pas_config.seed=3')
    train('cross', 'max_train_steps=6 stop_after_steps=5 checkpoint.resume_from=last -n 4 '
      .. 'pas_policy=hybrid')
    near(want, train('cross', 'max_train_steps=6 checkpoint.resume_from=last -n 2 pas_policy=dp'))
  end)

  it('go on from weights in shards with others, and the other way round', function()
    local more = 'max_train_steps=6 checkpoint.resume_from=last -n 2 pas_policy='
    train('shards', 'max_train_steps=6 stop_after_steps=2 -n 2 pas_policy=fsdp')
    train('shards', more .. 'tp stop_after_steps=4')
    near(want, train('shards', more .. 'fsdp'))
  end)

  it('go on from states in other shards', function()
    local more = 'max_train_steps=6 micro_batch_size=2 checkpoint.resume_from=last '
      .. 'debug.check_gradient_sync_cross_devices=true compute_config.plan_ngpus='
    local same = train('zero_one', 'max_train_steps=6 micro_batch_size=2')
    train('zero', 'max_train_steps=6 micro_batch_size=2 stop_after_steps=1 -n 4 pas_policy=dp '
      .. 'debug.check_gradient_sync_cross_devices=true '
      .. 'compute_config.use_zero=true compute_config.zero_use_reduce_scatter=true')
    train('zero', more .. '2 stop_after_steps=2 -n 4 pas_policy=pp compute_config.use_zero=2')
    train('zero', more .. '1 stop_after_steps=3 -n 4 pas_policy=dp compute_config.use_zero=3 '
      .. 'compute_config.zero_ngroups=2')
    train('zero', more .. '2 stop_after_steps=4 -n 2 pas_policy=tp')
    near(same, train('zero', more .. '2 -n 4 pas_policy=megatron compute_config.use_zero=1'))
  end)

  it('share out under a plan that was searched for', function()
    local said, code = shell.nnscaler('plan recipes/nanogpt.lua preset=tiny pas_policy=autodist '
      .. 'compute_config.use_zero=1 compute_config.plan_ngpus=2 compute_config.runtime_ngpus=4')
    assert.equal(0, code, said)
    assert.matches("plan 'autodist' [^\n]*, optimizer state sharded\n", said)
  end)

  it('name what does not fit', function()
    local function refused(more)
      return (shell.nnscaler(('run %s max_train_steps=1 gen_savedir=%s/e -n 2 %s')
        :format(job, folder, more)))
    end
    assert.matches('%[trainer.eager%] eager=true runs on one device; the run has 2 ranks',
      refused 'eager=true')
    assert.matches('compute_config.runtime_ngpus is 4; the run has 2 ranks',
      refused 'compute_config.runtime_ngpus=4')
    assert.matches("no policy 'no_such'", refused 'pas_policy=no_such')
    assert.matches('compute_config.use_zero.*4.*from 0 to 3', refused 'compute_config.use_zero=4')
    assert.matches('2 ZeRO groups of 1 scale units; expected a divisor', refused(
      'pas_policy=tp compute_config.use_zero=1 compute_config.zero_ngroups=2'))
    assert.matches('keys zero_%* of compute_config say nothing where use_zero is 0', refused(
      'pas_policy=dp compute_config.zero_ngroups=2'))
    assert.matches('use_zero=1: there is one scale unit, so nothing is shared out', refused(
      'pas_policy=tp compute_config.use_zero=1'))
    assert.matches('use_zero is 2; fsdp is dp with 3', refused(
      'pas_policy=fsdp compute_config.use_zero=2'))
  end)
end)
