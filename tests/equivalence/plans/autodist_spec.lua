--- Plans that autodist finds against one device: loss, gradients and weights of all models of the
--- matrix. The hardware is described: slow devices with fast links, on which it pays to cut even
--- the smallest models.
local models = require 'tests.equivalence.plans.models'
local runner = require 'tests.equivalence.plans.runner'

local config = { hardware = 'tests/equivalence/plans/links.yaml' }

local plans = {
  { name = 'autodist 2', plan = 2, ranks = 2, micro = 3 },
  { name = 'autodist 4', plan = 4, ranks = 4, micro = 3 },
  { name = 'autodist 2 × dp 2', plan = 2, ranks = 4, micro = 6 },
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
