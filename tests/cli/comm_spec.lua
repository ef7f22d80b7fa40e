-- Ranks as processes: the cases of the rank threads under mpirun and torchrun, and what the user
-- reads when joining fails.
local shell = require 'tests.cli.support.shell'
local cases = require 'tests.lua.support.comm_cases'
local launchers = require 'tests.cli.support.launchers'
local T = require 'nnscaler.tensor'

local rank = 'tests/cli/jobs/comm_rank.lua '
local launcher_of = { mpi = 'mpirun', gloo = 'torchrun' }

-- Runs the arguments of a rank on n ranks, which a back end joins.
local function run(backend, n, arguments)
  return launchers.run(launcher_of[backend], n, rank .. arguments)
end

for _, backend in ipairs { 'mpi', 'gloo' } do
  describe(backend .. ' communicator', function()
    for _, n in ipairs { 1, 2, 3, 4, 8 } do
      it('passes every case on ' .. n .. ' ranks', function()
        local said, code = run(backend, n, 'all')
        assert.equal(0, code, said)
        assert.matches(('%s %s: %d of %d ok'):format(backend, launcher_of[backend],
          #cases.names, #cases.names), said)
      end)
    end

    it('names what differs when ranks disagree', function()
      local said, code = run(backend, 2, 'disagree')
      assert.is_true(code ~= 0)
      assert.matches('%[comm.all_reduce%] the ranks of group 0,1 disagree: rank %d calls '
        .. 'all_reduce Float %[%d%] #%d', said)
    end)

    for _, where in ipairs { 'fail_alone', 'fail_under_way' } do
      it('ends all ranks when one fails: ' .. where, function()
        local said, code = run(backend, 2, where)
        assert.is_true(code ~= 0 and code ~= 124, said)
        assert.matches('boom on one rank', said)
      end)
    end

    it('starts sums without waiting and moves them beside other calls', function()
      local said, code = run(backend, 2, 'apart')
      assert.equal(0, code, said)
    end)
  end)
end

describe('mpi communicator', function()
  it('cuts messages that are too long for one', function()
    local said, code = run('mpi', 2, 'message_bytes=1000 all')
    assert.equal(0, code, said)
  end)
end)

describe('joining', function()
  local function refused(expected, arguments, before)
    local said, code = shell.nnscaler(rank .. arguments, before)
    assert.equal(2, code, said)
    assert.matches(expected, said, 1, true)
  end

  it('lists the back ends when one is unknown', function()
    refused("[comm.backend] unknown back end 'smoke'; expected one of auto, local, gloo, mpi, nccl",
      'backend=smoke')
  end)

  it('refuses local ranks where processes were started', function()
    refused("[comm.backend] 'local' joins threads of one process, but 2 processes were started "
      .. '(environment); expected mpi, gloo or nccl', 'backend=local', 'RANK=0 WORLD_SIZE=2')
  end)

  it('says why there is no GPU to join', function()
    if T.has_cuda() then return pending 'there is a GPU here' end
    local said, code = run('mpi', 2, 'backend=nccl')
    assert.is_true(code ~= 0, said)
    assert.matches('[comm.nccl] ', said, 1, true)
    assert.is_true((said:find 'no GPU' or said:find 'this build has no nccl back end') ~= nil, said)
  end)

  it('refuses the memory of hosts for ranks on GPUs', function()
    refused("[comm.backend] 'gloo' moves the memory of hosts, but the ranks compute on GPUs; "
      .. 'expected nccl', 'backend=gloo device=cuda', 'RANK=0 WORLD_SIZE=2')
  end)

  it('names variables that contradict', function()
    refused('[comm.launch] RANK is 2, but WORLD_SIZE is 2; expected a rank below it', '',
      'RANK=2 WORLD_SIZE=2')
  end)

  it('says what gloo needs', function()
    refused('[comm.gloo] MASTER_ADDR is not set', '', 'RANK=0 WORLD_SIZE=2')
    refused("[comm.gloo] MASTER_PORT is 'http'; expected a port, 1 to 65535", '',
      'RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=http')
  end)

  it('checks its options', function()
    refused('[comm.connect] message_bytes is 0; expected 1 to 2147483647', 'message_bytes=0')
    refused('[comm.connect] timeout_s is -1; expected a time above 0', 'timeout_s=-1')
  end)

  it('is alone without a launcher', function()
    local said, code = shell.nnscaler(rank .. 'all')
    assert.equal(0, code, said)
    assert.matches('local none: %d+ of %d+ ok', said)
  end)
end)
