--- What rank 0 does for the others: they wait as long as it takes, and an error reaches all.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'

local function run(case)
  return comm.run_local(3, 'tests.lua.support.rank_zero_cases', base.json_encode { case = case })
end

describe('work of rank 0', function()
  it('is waited for, and its result reaches all', function()
    assert.same({ 'made after beats', 'made after beats', 'made after beats' }, run 'slow')
  end)

  it('fails on all ranks with one reason', function()
    local results = run 'fails'
    assert.equal('plan: [policies.mine] no way to cut it (cut less)', results[1])
    for r = 2, 3 do
      assert.equal('communication: [runtime.first] rank 0 failed: [policies.mine] no way to cut '
        .. 'it (cut less)', results[r])
    end
  end)
end)
