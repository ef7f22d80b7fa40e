--- 40 random legal plans against one device (300 in tests/long). NNSCALER_SEED sets the first seed;
--- those of the default one cut every operator in every way.
local plans = require 'tests.equivalence.plans.random_plans'
local runner = require 'tests.equivalence.plans.runner'

local first = tonumber(os.getenv 'NNSCALER_SEED') or 1

describe('random plans,', function()
  local cells
  setup(function() cells = plans.run(first, 40) end)

  for i = 1, 40 do
    local cell = plans.cell(first + i - 1)
    it(('%s: %s on %d ranks'):format(cell.name, cell.model, cell.ranks), function()
      if runner.problem(cells[i]) then
        local small, problem = plans.shrink(cells[i])
        local base = require 'nnscaler._C.base'
        error(('%s fails: %s\nshrunk to %s'):format(cell.name, problem,
          base.json_encode { model = small.model, plan = small.plan, ranks = small.ranks,
            micro = small.micro, config = small.config }))
      end
    end)
  end

  it('cover the ways to cut and to communicate', function()
    local c = plans.coverage(cells)
    print(c.text)
    assert.is_true(c.replicated < 0.3)
    if first == 1 then assert.same({}, c.missing) end
    for _, kind in ipairs { 'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'send' } do
      assert.is_true((c.calls[kind] or 0) > 0, 'no ' .. kind)
    end
  end)
end)
