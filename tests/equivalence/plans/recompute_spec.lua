--- pas_config.recompute_modules under plans on several ranks: equal to one device, and to the last
--- bit what the same plan gives without it, dropout included.
local runner = require 'tests.equivalence.plans.runner'

local blocks = { recompute_modules = 'transformer.h.*' }

local cells = {
  { name = 'dp 2', policy = 'dp', plan = 1 }, { name = 'fsdp 2', policy = 'fsdp', plan = 1 },
  { name = 'tp 2', policy = 'tp', plan = 2 }, { name = 'pp 2', policy = 'pp', plan = 2 },
}

local plain, again = {}, {}
for i, cell in ipairs(cells) do
  local function with(config)
    return setmetatable({ model = 'gpt dropout', dtype = 'float64', ranks = 2, micro = 3,
      bits = true, config = config }, { __index = cell })
  end
  plain[i], again[i] = with {}, with(blocks)
end

describe('recompute by module', function()
  setup(function()
    local all = {}
    for i in ipairs(cells) do all[2 * i - 1], all[2 * i] = plain[i], again[i] end
    runner.run_all(all)
  end)

  for i, cell in ipairs(cells) do
    it(cell.name .. ' equals one device, and the plan without it bit for bit', function()
      for _, one in ipairs { plain[i], again[i] } do
        local problem = runner.problem(one)
        assert(not problem, problem)
      end
      for r, result in ipairs(again[i].results) do
        assert.equal(plain[i].results[r].bits, result.bits)
        assert.matches('recompute 0', result.plan)
      end
      assert.is_nil(plain[i].results[1].plan:find('recompute', 1, true))
    end)
  end
end)
