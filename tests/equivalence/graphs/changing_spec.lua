--- Models whose forward is another graph for another sample, under every policy: equal to one
--- device step by step, weights where the first graph has put them, one program a kind of sample.
local models = require 'tests.equivalence.graphs.changing'
local on_ranks = require 'tests.equivalence.support.on_ranks'

-- policy, plan_ngpus, ranks, pas_config, compute_config
local plans = {
  { 'dp', 1, 2 }, { 'fsdp', 1, 2 }, { 'tp', 2, 2 }, { 'data', 2, 2 }, { 'data', 2, 4 },
  { 'pp', 2, 2 }, { 'pp', 2, 4, { pipeline_scheduler = 'zb_h1' } },
  { 'pp', 2, 2, { pipeline_scheduler = 'chimera' } }, { 'hybrid', 4, 4 }, { 'megatron', 2, 2 },
  { 'dp', 1, 2, {}, { use_zero = 1 } },
  { 'dp', 1, 2, {}, { use_zero = 1, zero_use_reduce_scatter = true } },
  { 'pp', 2, 4, {}, { use_zero = 2 } }, { 'dp', 1, 4, {}, { use_zero = 3, zero_ngroups = 2 } },
}

local kMicro = 4

describe('a model that', function()
  for _, plan in ipairs(plans) do
    local config = plan[4] or {}
    for i, model in ipairs(models) do
      it(('%s: %s %s, plan of %d of %d ranks %s'):format(model.name, plan[1],
        config.pipeline_scheduler or '', plan[2], plan[3],
        plan[5] and 'zero ' .. plan[5].use_zero or ''), function()
        local results = on_ranks(plan[3], 'tests.equivalence.graphs.rank', { {
          models = 'tests.equivalence.graphs.changing', model = i, policy = plan[1],
          plan = plan[2], ranks = plan[3], micro = kMicro, config = config,
          compute = plan[5],
        } })
        for r, result in ipairs(results) do
          assert.same({}, result[1].bad, 'rank ' .. r - 1)
          assert.is_true(result[1].programs <= model.kinds, result[1].programs)
        end
      end)
    end
  end
end)
