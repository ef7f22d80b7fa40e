--- Where weights rest under a plan, as lowered programs tell it: shards, sets of gradients,
--- weights that stages share.
local T = require 'nnscaler.tensor'
local lower = require 'nnscaler._C.lower'
local nn = require 'nnscaler.nn'
local policies = require 'nnscaler.policies'
local trace = require 'nnscaler.trace'

local Twice = nn.class 'Twice'
function Twice:init() self.fc, self.last = nn.Linear(6, 6, { bias = false }), nn.Linear(6, 5) end
function Twice:forward(x) return self.last(self.fc(self.fc(x):tanh())):sum() end

local graph = trace(Twice {}, { T.zeros { 4, 6 } }, { training = true })

local function plan_of(policy, plan, runtime)
  return policies.run(graph, policy, { plan_ngpus = plan, runtime_ngpus = runtime, pas_config = {},
    micro_batches = 2 })
end

describe('homes of weights', function()
  it('are parts of the dimension that pads least under fsdp', function()
    local plan, starts = plan_of('fsdp', 1, 4), {}
    for rank = 0, 3 do
      for _, leaf in ipairs(lower.lower(graph, { plan = plan, rank = rank }):parameters()) do
        starts[leaf.name] = starts[leaf.name] or {}
        table.insert(starts[leaf.name], table.concat(leaf.start, ' ') .. ' of '
          .. table.concat(leaf.shape, ' '))
        assert.equal(3, leaf.zero)
        assert.equal(1, leaf.holders)
        assert.is_nil(leaf.reduce)
      end
    end
    assert.same({ '0 0 of 2 6', '2 0 of 2 6', '4 0 of 1 6', '5 0 of 1 6' }, starts['fc.weight'])
    assert.same({ '0 of 2', '2 of 1', '3 of 1', '4 of 1' }, starts['last.bias'])
    -- 6 in 4 pads to 8, 5 in 4 too: of more is wasted.
    assert.same({ '0 0 of 5 2', '0 2 of 5 2', '0 4 of 5 1', '0 5 of 5 1' }, starts['last.weight'])
  end)

  it('have gradients summed in sets, in the order in which backward completes them', function()
    local plan = plan_of('dp', 1, 2)
    local program = lower.lower(graph, { plan = plan, rank = 1 })
    assert.same({ { ranks = { 0, 1 }, names = { 'last.weight', 'last.bias', 'fc.weight' } } },
      program:sets())
    local names = {}
    local small = lower.lower(graph, { plan = plan, rank = 1, set_mb = 150 / 2 ^ 20 })
    for i, set in ipairs(small:sets()) do names[i] = table.concat(set.names, ' ') end
    assert.same({ 'last.weight last.bias', 'fc.weight' }, names)
    local addends = {}
    for _, leaf in ipairs(program:parameters()) do addends[leaf.name] = leaf.addends end
    assert.same({ ['fc.weight'] = 2, ['last.weight'] = 1, ['last.bias'] = 1 }, addends)
  end)

  it('are refused by name where stages hold a shared weight unequally often', function()
    local plan = plan_of(function(g)
      g:stage({ g:select({ op = 'linear' })[2] }, { { 0 }, { 1, 2 } })
      g:replicate_rest()
    end, 3, 3)
    local ok, message = pcall(lower.lower, graph, { plan = plan, rank = 0, stage = 0 })
    assert.is_false(ok)
    assert.matches('fc.weight is held 1 times in stage 0 and 2 times in stage 1', tostring(message))
  end)
end)
