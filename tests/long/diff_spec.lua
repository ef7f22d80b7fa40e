--- `nnscaler diff` over all pairs of right plans and all planted faults, within a minute for these.
local base = require 'nnscaler._C.base'
local differences = require 'tests.cli.support.differences'
local faults = require 'tests.cli.support.planted'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
teardown(remove)

describe('nnscaler diff', function()
  for _, pair in ipairs(faults.pairs.all) do
    it(('finds no difference between %s and %s'):format(pair[1], pair[2]), function()
      local said, code = differences.of_plans(differences.plans[pair[1]],
        differences.plans[pair[2]])
      assert.equal(0, code, said)
    end)
  end

  it('names the operator of each planted fault', function()
    local began, plans = base.clock(), {}
    differences.record(folder .. '/one')
    for _, fault in ipairs(faults.list) do
      faults.check(fault, folder .. '/one', folder)
      plans[fault.plan] = true
    end
    local count = 0
    for _ in next, plans do count = count + 1 end
    assert.equal(20, #faults.list)
    assert.is_true(count >= 6)
    local seconds = base.clock() - began
    print(('%d faults in %.1f s'):format(#faults.list, seconds))
    assert.is_true(seconds <= 60, ('%.1f s'):format(seconds))
  end)
end)
