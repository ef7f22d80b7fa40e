--- The local communicator: collectives on 1 to 8 rank threads, and how ranks fail together.
local comm = require 'nnscaler._C.comm'
local json = require 'nnscaler._C.base'

local function run(case, ranks)
  return comm.run_local(ranks, 'tests.lua.support.comm_cases', json.json_encode { case = case })
end

describe('local communicator', function()
  for _, case in ipairs(require('tests.lua.support.comm_cases').names) do
    it(case, function()
      for _, ranks in ipairs { 1, 2, 3, 4, 8 } do
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

  it('keeps what members show each other until all have read it', function()
    for _ = 1, 40 do
      local ok, e = pcall(run, 'fail_beside', 6)
      assert.is_false(ok)
      assert.matches('boom beside the group', tostring(e))
    end
  end)

  it('is one of the back ends that comm.backend names', function()
    local type
    for _, key in ipairs(require('nnscaler._C.job').keys()) do
      if key.path == 'comm.backend' then type = key.type end
    end
    local named, there = {}, {}
    for name in type:gmatch '%w+' do
      if name ~= 'auto' then named[#named + 1] = name end
    end
    for i, backend in ipairs(comm.backends()) do there[i] = backend.name end
    table.sort(named)
    table.sort(there)
    assert.same(named, there)
  end)

  it('is nil before a rank has joined', function() assert.is_nil(comm.current()) end)
end)
