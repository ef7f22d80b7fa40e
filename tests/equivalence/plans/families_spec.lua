--- One model of each family of layers trains as eager=true on one device does, under plans.
local family_models = require 'tests.equivalence.plans.family_models'
local on_ranks = require 'tests.equivalence.support.on_ranks'

local plans = {
  { name = 'one device', policy = 'dp', plan = 1, ranks = 1 },
  { name = 'dp 2', policy = 'dp', plan = 1, ranks = 2 },
  { name = 'data 2', policy = 'data', plan = 2, ranks = 2 },
  { name = 'tp 2', policy = 'tp', plan = 2, ranks = 2 },
  { name = 'tp 2 (seed 2)', policy = 'tp', plan = 2, ranks = 2, config = { seed = 2 } },
  { name = 'pp 2', policy = 'pp', plan = 2, ranks = 2 },
}

for _, plan in ipairs(plans) do
  describe('families of layers, ' .. plan.name .. ',', function()
    local found
    setup(function()
      local cells = {}
      for i, name in ipairs(family_models.names) do
        cells[i] = { model = 'family ' .. name, policy = plan.policy, plan = plan.plan,
          ranks = plan.ranks, micro = 2, config = plan.config }
      end
      found = on_ranks(plan.ranks, 'tests.equivalence.plans.hidden_rank',
        { module = 'tests.equivalence.plans.family_models', cells = cells })
    end)
    for i, name in ipairs(family_models.names) do
      it(name, function()
        for rank, results in ipairs(found) do
          local where = ('rank %d'):format(rank - 1)
          if name == 'spectral' and plan.ranks > plan.plan then
            assert.matches('%[lower.buffer%] results depend on what .* which every micro%-batch '
              .. 'writes', results[i].error)
          else
            assert.is_nil(results[i].error, where)
            assert.equal('', table.concat(results[i].bad, '\n'), where)
          end
        end
      end)
    end
  end)
end
