--- What a rank sends, counted below the program by a shim of MPI, is what its plan needs.
local launchers = require 'tests.cli.support.launchers'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()

describe('the payload of a step', function()
  teardown(remove)
  local shim = folder .. '/count_mpi.so'
  local said, code = shell.run(('mpicc -shared -fPIC -O1 -o %s tests/cli/support/count_mpi.c')
    :format(shim))
  assert.equal(0, code, said)

  -- Bytes that each rank sends in a step: of a run of 22 steps less one of 12.
  local function per_step(n, more)
    local sent = {}
    for _, steps in ipairs { 12, 22 } do
      said, code = shell.run(('LD_PRELOAD=%s '):format(shim) .. launchers.by_name.mpirun(n,
        ('run recipes/quickstart.lua micro_batch_size=%d threads=1 checkpoint.no_save=true '
        .. 'gen_savedir=%s/g max_train_steps=%d precision=fp64 %s'):format(2, folder, steps, more),
        60))
      assert.equal(0, code, said)
      for rank, bytes in said:gmatch 'rank (%d+) sent (%d+) bytes' do
        sent[rank + 1] = bytes - (sent[rank + 1] or 0)
      end
    end
    for r = 1, n do sent[r] = sent[r] / 10 end
    return sent
  end

  -- Per step: the gradients; loss and weight, the norm, twice whether a signal came.
  local gradients, numbers = (100 * 10 + 10) * 8, (2 + 1 + 2) * 8

  it('is that of the gradients under dp on 2 ranks', function()
    for _, bytes in ipairs(per_step(2, 'pas_policy=dp')) do
      assert.equal(gradients + numbers, bytes)
    end
  end)
end)
