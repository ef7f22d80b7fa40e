--- nnscaler.wrap on rank threads against the same loop on one device that has the rows of all
--- ranks: results, gradients of inputs, weights after two steps, evaluation and state, in float64.
local on_ranks = require 'tests.equivalence.support.on_ranks'

-- name, policy, ranks; plan: plan_ngpus; config: pas_config; micro: micro_batches; zero: use_zero
local plans = {
  { 'rannc 1', 'rannc', 1 },
  { 'rannc 2', 'rannc', 2 },
  { 'rannc 4', 'rannc', 4 },
  { 'rannc, two stages', 'rannc', 2, config = { partition_num = 2 } },
  { 'rannc, two stages of two, in 2', 'rannc', 4, config = { partition_num = 2 }, micro = 2 },
  { 'dp 2', 'dp', 2 },
  { 'dp 4, in 2', 'dp', 4, micro = 2 },
  { 'fsdp 2', 'fsdp', 2 },
  { 'data 2', 'data', 2 },
  { 'data 2 x dp 2', 'data', 4, plan = 2 },
  { 'tp 4', 'tp', 4, config = { seed = 2 } },
  { 'pp 2', 'pp', 2 },
  { 'pp 4, in 4', 'pp', 4, micro = 4 },
  { 'pp 2 x dp 2, in 2, zero 1', 'pp', 4, plan = 2, micro = 2, zero = 1 },
  { 'hybrid 2 x 2', 'hybrid', 4, config = { pipeline_nstages = 2 }, micro = 2 },
}

describe('a wrapped module,', function()
  for i, plan in ipairs(plans) do
    it(plan[1] .. ', equals one device', function()
      local alone = plan[2] == 'dp' or plan[2] == 'fsdp'
      local units = plan[3] / (plan.plan or alone and 1 or plan[3])
      local results = on_ranks(plan[3], 'tests.equivalence.library.wrap_rank', {
        policy = plan[2], world = plan[3], plan = plan.plan, pas_config = plan.config or {},
        micro = plan.micro or 1, zero = plan.zero, units = units,
        optimizer = i % 2 == 0 and 'sgd' or 'adamw',
      })
      for r, result in ipairs(results) do
        assert.is_true(result.worst <= 1e-11, ('rank %d: %s differs by %.3g'):format(r - 1,
          result.where, result.worst))
        local config = plan.config or {}
        local stages = plan[2] == 'pp' and (plan.plan or plan[3]) or config.partition_num
          or config.pipeline_nstages
        if stages then assert.equal(stages, result.stages) end
      end
    end)
  end
end)
