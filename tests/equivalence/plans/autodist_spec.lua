--- Plans that autodist finds against one device: loss, gradients and weights of all models of the
--- matrix, and of pipelines of some. The hardware is described: slow devices with fast links, on
--- which it pays to cut even the smallest models.
local models = require 'tests.equivalence.plans.models'
local runner = require 'tests.equivalence.plans.runner'

local config = { hardware = 'tests/equivalence/plans/links.yaml' }

local plans = {
  { name = 'autodist 2', plan = 2, ranks = 2, micro = 3 },
  { name = 'autodist 4', plan = 4, ranks = 4, micro = 3 },
  { name = 'autodist 2 × dp 2', plan = 2, ranks = 4, micro = 6 },
}

-- models, plan_ngpus, ranks, micro-batches, pipeline_nstages, pipeline_scheduler
local deep = { 'sigmoids', 'gpt tied', 'gpt dropout' }
local all = { 'mlp', 'shared weight', 'sigmoids', 'gpt tied', 'gpt dropout' }
local pipelines = {
  { all, 2, 2, 4, 2 }, { deep, 4, 4, 4, 2 }, { all, 4, 4, 4, 'auto' }, { deep, 2, 4, 6, 2 },
  { deep, 4, 4, 4, 2, '1f1b_interleaved' }, { deep, 2, 2, 3, 2, 'zb_h1' },
}

for _, plan in ipairs(plans) do
  describe(plan.name .. ',', function()
    local cells, cut = {}, 0
    setup(function()
      for _, model in ipairs(models.list) do
        if models[model].group == 'main' then
          cells[#cells + 1] = { model = model, policy = 'autodist', plan = plan.plan,
            ranks = plan.ranks, micro = plan.micro, config = config, dtype = 'float64' }
        end
      end
      runner.run_all(cells)
    end)
    it('every model trains as on one device', function()
      for _, cell in ipairs(cells) do
        assert.is_nil(runner.problem(cell), cell.model)
        if cell.results[1].plan:find(' into ', 1, true) then cut = cut + 1 end
      end
      assert.is_true(cut > #cells / 2, ('%d of %d models are cut'):format(cut, #cells))
    end)
  end)
end

describe('a pipeline that autodist finds:', function()
  for _, plan in ipairs(pipelines) do
    for _, model in ipairs(plan[1]) do
      it(('%s, %d of %d ranks, %d micro-batches, %s stages %s'):format(model, plan[2], plan[3],
        plan[4], plan[5], plan[6] or ''), function()
        local cell = { model = model, policy = 'autodist', plan = plan[2], ranks = plan[3],
          micro = plan[4], evaluate = true, dtype = 'float64',
          config = { hardware = config.hardware, pipeline_nstages = plan[5],
            pipeline_scheduler = plan[6] } }
        runner.run { cell }
        local problem = runner.problem(cell)
        assert(not problem, problem)
        if plan[5] ~= 'auto' then assert.matches('stage 1', cell.results[1].plan) end
      end)
    end
  end
end)
