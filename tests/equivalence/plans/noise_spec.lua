--- Noise in forward (noise_in_forward): drawn as dropout draws, by key, seed, step, micro-batch and
--- place in the unsplit tensor, so that every plan trains as eager=true on one device does.
local on_ranks = require 'tests.equivalence.support.on_ranks'

local plans = {
  { name = 'one device', policy = 'dp', plan = 1, ranks = 1 },
  { name = 'dp 2', policy = 'dp', plan = 1, ranks = 2 },
  { name = 'data 2', policy = 'data', plan = 2, ranks = 2 },
  { name = 'tp 2', policy = 'tp', plan = 2, ranks = 2 },
  { name = 'tp 2 (seed 2)', policy = 'tp', plan = 2, ranks = 2, config = { seed = 2 } },
  { name = 'pp 2', policy = 'pp', plan = 2, ranks = 2 },
}

describe('noise_in_forward,', function()
  for _, plan in ipairs(plans) do
    for _, name in ipairs { 'normal', 'randn_like', 'rand_like', 'bernoulli' } do
      it(('%s, %s'):format(name, plan.name), function()
        local results = on_ranks(plan.ranks, 'tests.equivalence.plans.hidden_rank', {
          module = 'tests.equivalence.plans.noise_models',
          cells = { { model = 'noise ' .. name, policy = plan.policy, plan = plan.plan,
            ranks = plan.ranks, micro = 3, config = plan.config } },
        })
        for _, list in ipairs(results) do
          assert.is_nil(list[1].error)
          assert.equal('', table.concat(list[1].bad, '\n'))
        end
      end)
    end
  end
end)
