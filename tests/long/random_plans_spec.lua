--- 300 random legal plans against one device; see tests/equivalence/plans/random_spec.lua.
--- NNSCALER_SEED sets the first seed.
local plans = require 'tests.equivalence.plans.random_plans'

local first, COUNT = tonumber(os.getenv 'NNSCALER_SEED') or 1000, 300

describe('300 random plans', function()
  local cells
  setup(function() cells = plans.run(first, COUNT) end)

  it('equal one device', function()
    local problems = {}
    for _, cell in ipairs(cells) do problems[#problems + 1] = plans.report(cell) end
    assert.equal('', table.concat(problems, '\n\n'))
  end)

  it('cut their operators in every way', function()
    local c = plans.coverage(cells)
    print(c.text)
    assert.is_true(c.replicated < 0.3)
    assert.same({}, c.missing)
  end)
end)
