--- The local communicator: collectives on 2 to 8 rank threads, and how ranks fail together.
local comm = require 'nnscaler._C.comm'
local json = require 'nnscaler._C.base'

local function run(case, ranks)
  return comm.run_local(ranks, 'tests.lua.support.comm_cases', json.json_encode { case = case })
end

describe('local communicator', function()
  for _, case in ipairs {
    'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'send_recv', 'broadcast',
    'exchange', 'low_precision', 'bytes', 'subgroups',
  } do
    it(case, function()
      for _, ranks in ipairs { 2, 4, 8 } do
        local results = run(case, ranks)
        assert.equal(ranks, #results)
        assert.equal(case .. ' ok', results[ranks])
      end
    end)
  end

  it('names what differs when ranks disagree', function()
    local ok, e = pcall(run, 'disagree', 2)
    assert.is_false(ok)
    assert.matches('%[comm.all_reduce%] the ranks of group 0,1 disagree', tostring(e))
  end)

  it('ends all ranks when one fails, and tells its reason', function()
    local ok, e = pcall(run, 'fail_alone', 4)
    assert.is_false(ok)
    assert.matches('boom on one rank', tostring(e))
  end)

  it('is nil on one rank', function() assert.is_nil(comm.current()) end)
end)
