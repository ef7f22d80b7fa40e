--- What a rank sends, counted below the program by a shim of MPI, is what its program says.
local base = require 'nnscaler._C.base'
local beside = require 'tests.equivalence.support.beside'
local launchers = require 'tests.cli.support.launchers'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
local shim = folder .. '/count_mpi.so'

local cases = {
  [2] = {
    { model = 'gpt untied', policy = 'dp', plan = 1, micro = 1 },
    { model = 'gpt dropout', policy = 'tp', plan = 2, micro = 2 },
    { model = 'llama', policy = 'tp', plan = 2, micro = 2, config = { seed = 2 } },
    { model = 'llama', policy = 'megatron', plan = 2, micro = 2 },
    { model = 'llama', policy = 'megatron', plan = 2, micro = 2,
      config = { sequence_parallel = true } },
    { model = 'gpt tied', policy = 'pp', plan = 2, micro = 4 },
    { model = 'gpt untied', policy = 'fsdp', plan = 1, micro = 2 },
    { model = 'llama', policy = 'data', plan = 2, micro = 1 },
  },
  [4] = {
    { model = 'llama', policy = 'dp', plan = 1, micro = 1 },
    { model = 'llama', policy = 'hybrid', plan = 4, micro = 2, config = { pipeline_nstages = 2 } },
    { model = 'llama', policy = 'fsdp', plan = 1, micro = 1 },
    { model = 'gpt untied', policy = 'tp', plan = 2, micro = 2 },
  },
}

describe('the payload of a step', function()
  teardown(remove)
  local said, code = shell.run(('mpicc -shared -fPIC -O1 -o %s tests/cli/support/count_mpi.c')
    :format(shim))
  assert.equal(0, code, said)

  -- Bytes that each rank sends in a step: of a run of 18 steps less one of 10, both from written
  -- files, which another run writes. (After 20 steps a run tells once what was predicted of it.)
  local function per_step(n, more)
    local sent = {}
    for k, steps in ipairs { 2, 10, 18 } do
      said, code = shell.run(('LD_PRELOAD=%s '):format(shim) .. launchers.by_name.mpirun(n,
        ('run recipes/quickstart.lua micro_batch_size=2 threads=1 checkpoint.no_save=true '
        .. 'gen_savedir=%s/g max_train_steps=%d precision=fp64 %s'):format(folder, steps, more),
        60))
      assert.equal(0, code, said)
      for rank, bytes in said:gmatch 'rank (%d+) sent (%d+) bytes' do
        sent[rank + 1] = k < 3 and bytes or bytes - sent[rank + 1]
      end
    end
    for r = 1, n do sent[r] = sent[r] / 8 end
    return sent
  end

  -- The gradients; loss and weight, sum and number of losses, and whether a rank runs another
  -- graph; the norm; what signals and hooks decided: a signal, stop, save, evaluate.
  local gradients, numbers = (100 * 10 + 10) * 8, (5 + 1 + 4) * 8

  it('is that of gradients and ten numbers in a run under dp', function()
    for _, bytes in ipairs(per_step(2, 'pas_policy=dp')) do
      assert.equal(gradients + numbers, bytes)
    end
  end)

  for _, n in ipairs { 2, 4 } do
    it(('is that of the program on %d ranks'):format(n), function()
      local ins, outs = folder .. '/in.json', folder .. '/out.json'
      for _, case in ipairs(cases[n]) do case.ranks, case.experiment = n, 'step' end
      base.file_write(ins, base.json_encode(cases[n]))
      local out, rc = shell.run(('LD_PRELOAD=%s '):format(shim) .. launchers.by_name.mpirun(n,
        ('tests/cli/jobs/payload_rank.lua %s %s'):format(ins, outs), 60))
      assert.equal(0, rc, out)
      local by_rank = base.json_decode(base.file_read(outs))
      for i, case in ipairs(cases[n]) do
        for r = 0, n - 1 do
          local result = by_rank[r + 1][i]
          assert.equal(result.said + beside(n, r, result.lockstep), result.counted,
            ('%s under %s, rank %d'):format(case.model, case.policy, r))
        end
      end
    end)
  end
end)
