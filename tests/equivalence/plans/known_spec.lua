--- Models in which other systems lost a factor or a sum (smoothed labels under tensor parallelism,
--- attention sinks, a norm before heads in parts) train as on one device under every kind of plan.
local hidden = require 'tests.equivalence.plans.hidden'

local all = { 'smoothed labels, mean', 'smoothed labels, sum', 'smoothed labels, none', 'sinks' }

-- cuts: fewest operators that the plan has to cut.
local plans = {
  { of = all, policy = 'tp', ranks = 2, cuts = 3 },
  { of = all, policy = 'tp', ranks = 4, config = { seed = 2, uneven = true }, cuts = 3 },
  { of = all, policy = 'tp', ranks = 4, plan = 2, config = { seed = 4 }, cuts = 3 },
  { of = all, policy = 'fsdp', ranks = 2, plan = 1 },
  { of = all, policy = 'dp', ranks = 4, plan = 1 },
  { of = all, policy = 'pp', ranks = 2 }, { of = all, policy = 'data', ranks = 2, cuts = 3 },
  { of = all, policy = 'megatron', ranks = 2 },
}

for _, plan in ipairs(plans) do
  describe(hidden.name(plan), function()
    local found
    setup(function() found = hidden.run('tests.equivalence.plans.known_models', plan) end)
    for i, model in ipairs(plan.of) do
      it(model, function() assert.equal('', hidden.problems(plan, found, i)) end)
    end
  end)
end
