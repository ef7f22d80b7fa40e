-- Ranks on GPUs, one each, joined by NCCL: every communication case, and training as one device
-- does. Skipped where there are fewer than two GPUs.
local cases = require 'tests.lua.support.comm_cases'
local launchers = require 'tests.cli.support.launchers'
local shell = require 'tests.cli.support.shell'
local training = require 'tests.cli.support.training'

local gpus = require('nnscaler._C.tensor').cuda_count()
local too_few = 'two GPUs are needed, this machine shows ' .. gpus

describe('nccl communicator', function()
  it('passes every case on 2 ranks', function()
    if gpus < 2 then return pending(too_few) end
    local said, code = launchers.run('torchrun', 2, 'tests/cli/jobs/comm_rank.lua backend=nccl all')
    assert.equal(0, code, said)
    assert.matches(('nccl torchrun: %d of %d ok'):format(#cases.names, #cases.names), said)
  end)
end)

describe('ranks on GPUs', function()
  local runs = training.new('recipes/nanogpt.lua preset=tiny layers=2 width=32 block=16 '
    .. 'precision=fp64 max_val_steps=2 micro_batch_size=2 global_batch_size=4 dropout=0.1 '
    .. 'threads=1 max_train_steps=6')
  teardown(runs.remove)

  for _, policy in ipairs { 'dp', 'tp', 'pp', 'fsdp' } do
    it('train as one processor does: ' .. policy, function()
      if gpus < 2 then return pending(too_few) end
      local said, code = shell.nnscaler(runs.arguments('one', ''))
      assert.equal(0, code, said)
      said, code = launchers.run('torchrun', 2,
        runs.arguments(policy, 'device=cuda pas_policy=' .. policy))
      assert.equal(0, code, said)
      assert.matches('2 ranks joined by nccl', said)
      training.near(runs.rows 'one', runs.rows(policy))
    end)
  end
end)
