--- Parallel modules whose forward is another graph for another sample, in hand-written loops and as
--- end-to-end modules: weights after some steps equal those of one device, one program a kind of
--- sample.
local models = require 'tests.equivalence.graphs.changing'
local on_ranks = require 'tests.equivalence.support.on_ranks'

-- policy, plan_ngpus, ranks, whether it is an end-to-end module, pas_config
local plans = {
  { 'dp', 1, 2 }, { 'tp', 2, 2 }, { 'data', 2, 4 }, { 'megatron', 2, 2 },
  { 'dp', 1, 2, true }, { 'fsdp', 1, 2, true }, { 'tp', 2, 4, true },
  { 'pp', 2, 2, true, { pipeline_nmicros = 4 } },
  { 'hybrid', 4, 4, true, { pipeline_nmicros = 4 } },
}

local kMicro = 4

describe('a parallel module that', function()
  for _, plan in ipairs(plans) do
    for i, model in ipairs(models) do
      it(('%s: %s %s, plan of %d of %d ranks'):format(model.name, plan[1],
        plan[4] and 'end to end' or 'in a loop', plan[2], plan[3]), function()
        local results = on_ranks(plan[3], 'tests.equivalence.graphs.library_rank', {
          model = i, policy = plan[1], plan = plan[2], ranks = plan[3], micro = kMicro,
          end2end = plan[4], config = plan[5] or {},
        })
        for r, result in ipairs(results) do
          assert.same({}, result.bad, 'rank ' .. r - 1)
          assert.is_true(result.programs <= model.kinds, result.programs)
        end
      end)
    end
  end
end)
