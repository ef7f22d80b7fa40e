--- Evaluation of models that run other operators there than in training, under pipelines of every
--- schedule: equal to one device, after training that is.
local models = require 'tests.equivalence.graphs.evaluated'
local on_ranks = require 'tests.equivalence.support.on_ranks'

local plans = {
  { 'pp', 2, 2 }, { 'pp', 4, 4, 'gpipe' }, { 'pp', 2, 2, 'zb_h1' }, { 'pp', 2, 2, 'zbv' },
  { 'pp', 2, 2, '1f1b_interleaved' }, { 'pp', 2, 2, 'chimera' }, { 'pp', 2, 4 },
  { 'hybrid', 4, 4 }, { 'megatron', 4, 4 },
}

local kMicro = 4

local function cell_of(i, plan)
  return { models = 'tests.equivalence.graphs.evaluated', model = i, policy = plan[1],
    plan = plan[2], ranks = plan[3], micro = kMicro,
    config = { pipeline_scheduler = plan[4], pipeline_nstages = plan[1] ~= 'pp' and 2 or nil } }
end

describe('evaluation of a model that', function()
  for _, plan in ipairs(plans) do
    local name = ('%s %s, plan of %d of %d ranks'):format(plan[1], plan[4] or '', plan[2], plan[3])
    for i, model in ipairs(models) do
      -- Two ranks see micro-batches of one stage: what each of them writes has no order.
      local refused = plan[4] == 'chimera' and model.writes
      if not refused then it(('%s: %s'):format(model.name, name), function()
        local results, told = on_ranks(plan[3], 'tests.equivalence.graphs.rank',
          { cell_of(i, plan) }), 0
        for r, result in ipairs(results) do
          assert.same({}, result[1].bad, 'rank ' .. r - 1)
          told = told + result[1].told
        end
        -- Every device of the last stage tells results; each micro-batch is told.
        assert.is_true(told >= kMicro, told)
      end) end
    end
  end
end)
