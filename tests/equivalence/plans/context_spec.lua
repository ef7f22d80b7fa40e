--- Texts that several devices share train as on one device: attention round the devices, in zigzag
--- where parts are even, and by heads; lengths that do not divide; one target in the whole text, on
--- the first or on the last device.
local hidden = require 'tests.equivalence.plans.hidden'

local even = { 'text of 16', 'text of 16, first target', 'text of 16, last target',
  'text of 16, gpt', 'text of 16, experts', 'text of 16, deepseek' }
local odd = { 'text of 7', 'text of 7, first target', 'text of 7, last target', 'text of 33',
  'text of 33, last target' }
local some = { 'text of 16', 'text of 7' }

local function megatron(of, ranks, config, more)
  local plan = { of = of, policy = 'megatron', ranks = ranks, config = config, cuts = 40 }
  for key, value in next, more or {} do plan[key] = value end
  return plan
end

local plans = {
  megatron(even, 2, { context_parallel = 2 }),
  megatron(even, 4, { context_parallel = 4 }),
  megatron(odd, 2, { context_parallel = 2 }),
  megatron(odd, 4, { context_parallel = 4 }),
  megatron(even, 2, { context_parallel = 2, context_attention = 'all_to_all' }),
  megatron(odd, 2, { context_parallel = 2, context_attention = 'all_to_all' }),
  megatron(some, 4, { context_parallel = 2 }),
  megatron(some, 4, { context_parallel = 2 }, { plan = 2 }),
  megatron(some, 4, { context_parallel = 2, pipeline_nstages = 2 }),
  megatron({ 'text of 16' }, 2, { context_parallel = 2, recompute_modules = 'model.layers.*' }),
}

for _, plan in ipairs(plans) do
  describe(hidden.name(plan), function()
    local found
    setup(function() found = hidden.run('tests.equivalence.plans.context_models', plan) end)
    for i, model in ipairs(plan.of) do
      it(model, function() assert.equal('', hidden.problems(plan, found, i)) end)
    end
  end)
end
