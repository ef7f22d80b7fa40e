--- Every schedule against one device, in float64: training as the plan matrix compares it, and the
--- loss of evaluation over the same stages. The matrix is data.
local runner = require 'tests.equivalence.plans.runner'

local deep = { 'sigmoids', 'gpt tied', 'gpt dropout' } -- enough operators for eight stages
local all = { 'mlp', 'shared weight', 'sigmoids', 'gpt tied', 'gpt dropout' }
local custom = 'tests.equivalence.plans.custom'

local function with(schedule, more)
  local config = more or {}
  config.pipeline_scheduler = schedule
  return config
end

-- models, policy, plan_ngpus, ranks, micro-batches, pas_config
local plans = {
  { all, 'pp', 2, 2, 4, with '1f1b_interleaved' },
  { deep, 'pp', 4, 4, 4, with '1f1b_interleaved' },
  { deep, 'pp', 2, 2, 4, with('1f1b_interleaved', { pipeline_chunks = 3 }) },
  { all, 'pp', 2, 2, 3, with 'zb_h1' },
  { deep, 'pp', 4, 4, 5, with 'zb_h1' },
  { all, 'pp', 2, 2, 3, with 'zbv' },
  { deep, 'pp', 4, 4, 4, with 'zbv' },
  { all, 'pp', 2, 2, 4, with 'chimera' },
  { deep, 'pp', 4, 4, 4, with 'chimera' },
  { deep, 'pp', 2, 4, 8, with 'zbv' },
  { all, 'hybrid', 4, 4, 3, with('zb_h1', { pipeline_nstages = 2 }) },
  { deep, 'hybrid', 4, 4, 4, with('1f1b_interleaved', { pipeline_nstages = 2 }) },
  { deep, 'hybrid', 4, 8, 6, with('zbv', { pipeline_nstages = 2 }) },
  { all, custom, 2, 2, 3, {} },
}

describe('a pipeline of', function()
  for _, plan in ipairs(plans) do
    for _, model in ipairs(plan[1]) do
      local config = plan[6]
      it(('%s: %s %s, %d of %d ranks, %d micro-batches'):format(model, plan[2],
        config.pipeline_scheduler or '', plan[3], plan[4], plan[5]), function()
        local cell = { model = model, policy = plan[2], plan = plan[3], ranks = plan[4],
          micro = plan[5], config = config, evaluate = true }
        runner.run { cell }
        local problem = runner.problem(cell)
        assert(not problem, problem)
      end)
    end
  end
end)
