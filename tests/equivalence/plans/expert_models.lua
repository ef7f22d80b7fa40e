--- Models with experts, for the plans of experts_spec. They are models of the plan matrix,
--- unlisted.
local DeepSeek = require 'nnscaler.models.deepseek'
local Llama = require 'nnscaler.models.llama'
local T = require 'nnscaler.tensor'
local models = require 'tests.equivalence.plans.models'

local function sample(g)
  local ids = { dtype = 'int64', generator = g }
  return { x = T.randint(0, 16, { 2, 8 }, ids), y = T.randint(0, 16, { 2, 8 }, ids) }
end

local function add(name, make) models[name] = { make = make, sample = sample } end

local function mixtral(experts)
  return function()
    return Llama { vocab = 16, layers = 2, heads = 4, kv_heads = 2, width = 8, hidden = 12,
      block = 8, std = 0.5, experts = experts }
  end
end

add('experts', mixtral { count = 4, balance = 0.1, z = 0.01 })
-- 16 tokens choose one of 16 experts each: some have none.
add('experts without tokens', mixtral { count = 16, chosen = 1, normalize = false, balance = 0.1 })
add('experts, limited', mixtral { count = 4, capacity = 0.7, balance = 0.1 })
add('experts, deepseek', function()
  return DeepSeek { vocab = 16, layers = 2, heads = 4, width = 8, hidden = 12, block = 8,
    head_dim = 4, rope_dim = 2, value_dim = 6, kv_rank = 6, expert_hidden = 8, shared = 1,
    std = 0.5, experts = { count = 8, chosen = 3, normalize = false, scale = 1.5, balance = 0.1 } }
end)
