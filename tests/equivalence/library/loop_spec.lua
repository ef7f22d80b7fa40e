--- Hand-written loops with parallel modules on rank threads against the same loop on one device:
--- losses, norms before clipping, weights and buffers of several steps, in float64.
local on_ranks = require 'tests.equivalence.support.on_ranks'

-- name, policy, plan_ngpus, ranks, micro-batches, pas_config; only: for one model; zero: keys of
-- compute_config
local plans = {
  { 'one rank', 'dp', 1, 1, 2 },
  { 'dp 2', 'dp', 1, 2, 4 },
  { 'dp 4', 'dp', 1, 4, 4 },
  { 'tp 2', 'tp', 2, 2, 2 },
  { 'tp 2, seed 5', 'tp', 2, 2, 2, { seed = 5 } },
  { 'tp 4', 'tp', 4, 4, 2, { seed = 2 } },
  { 'data 2', 'data', 2, 2, 2 },
  { 'tp 2 x dp 2', 'tp', 2, 4, 4, { seed = 4 } },
  { 'turns made again', 'tests/equivalence/library/turns.lua', 2, 4, 4, only = 'parts' },
  { 'fsdp 2', 'fsdp', 1, 2, 4 },
  { 'fsdp 4', 'fsdp', 1, 4, 4 },
  { 'dp 2, zero 1', 'dp', 1, 2, 4, zero = { use_zero = true } },
  { 'dp 4, zero 1, scattered in 2 groups', 'dp', 1, 4, 4,
    zero = { use_zero = 1, zero_use_reduce_scatter = true, zero_ngroups = 2 } },
  { 'tp 2 x dp 2, zero 2', 'tp', 2, 4, 4, { seed = 4 }, zero = { use_zero = 2 } },
  { 'pp 2', 'pp', 2, 2, 2, { pipeline_nmicros = 2 }, only = 'end2end' },
  { 'pp 2 x dp 2', 'pp', 2, 4, 4, { pipeline_nmicros = 2 }, only = 'end2end' },
  { 'hybrid 2 x 2', 'hybrid', 4, 4, 2, { pipeline_nstages = 2, pipeline_nmicros = 2 },
    only = 'end2end' },
}

describe('a hand-written loop,', function()
  for _, model in ipairs { 'whole', 'parts', 'statistics', 'end2end' } do
    for i, plan in ipairs(plans) do
      if not plan.only or plan.only == model then
        it(('%s, %s'):format(model, plan[1]), function()
          local results = on_ranks(plan[4], 'tests.equivalence.library.rank', {
            model = model, policy = plan[2], plan = plan[3], world = plan[4],
            micro_batches = plan[5], pas_config = plan[6] or {},
            zero = plan.zero,
            optimizer = i % 2 == 0 and 'sgd' or 'adamw',
          })
          for r, result in ipairs(results) do
            assert.is_true(result.worst <= 1e-11, ('rank %d: %s differs by %.3g'):format(r - 1,
              result.where, result.worst))
            if plan[2] == 'tp' and model ~= 'statistics' then assert.is_true(result.cut > 0) end
          end
        end)
      end
    end
  end
end)
