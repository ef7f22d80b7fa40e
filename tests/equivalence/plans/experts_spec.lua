--- Models with experts train as on one device: losses, gradients and weights, with the addends of
--- the loss that keep experts in balance; experts on several devices, which may get no token.
local hidden = require 'tests.equivalence.plans.hidden'

local all = { 'experts', 'experts without tokens', 'experts, limited', 'experts, deepseek' }
local some = { 'experts', 'experts, deepseek' }

local plans = {
  { of = all, policy = 'dp', ranks = 2, plan = 1 },
  { of = some, policy = 'fsdp', ranks = 2, plan = 1 },
  { of = some, policy = 'data', ranks = 2 },
  { of = some, policy = 'pp', ranks = 2 },
  { of = all, policy = 'tp', ranks = 2, cuts = 40 },
  { of = some, policy = 'tp', ranks = 4, config = { seed = 3 }, cuts = 40 },
  { of = all, policy = 'megatron', ranks = 2, cuts = 13 },
  { of = all, policy = 'megatron', ranks = 4, cuts = 6 },
  { of = all, policy = 'megatron', ranks = 2, config = { sequence_parallel = true }, cuts = 20 },
  { of = some, policy = 'megatron', ranks = 2, config = { expert_parallel = false }, cuts = 13 },
  { of = some, policy = 'megatron', ranks = 4, plan = 2, cuts = 13 },
  { of = some, policy = 'megatron', ranks = 4, config = { pipeline_nstages = 2 }, cuts = 13 },
}

-- A router that counts tokens by a mask, which others are known to ignore.
local masked = { 'experts, masked' }
for _, plan in ipairs {
  { of = masked, policy = 'dp', ranks = 2, plan = 1 },
  { of = masked, policy = 'fsdp', ranks = 2, plan = 1 },
  { of = masked, policy = 'data', ranks = 2 }, { of = masked, policy = 'pp', ranks = 2 },
  { of = masked, policy = 'tp', ranks = 2, cuts = 10 },
  { of = masked, policy = 'tp', ranks = 4, config = { seed = 3 }, cuts = 10 },
  { of = masked, policy = 'megatron', ranks = 2 },
} do
  plans[#plans + 1] = plan
end

for _, plan in ipairs(plans) do
  describe(hidden.name(plan), function()
    local found
    setup(function() found = hidden.run('tests.equivalence.plans.expert_models', plan) end)
    for i, model in ipairs(plan.of) do
      it(model, function() assert.equal('', hidden.problems(plan, found, i)) end)
    end
  end)
end
