--- Models with experts, for the plans of experts_spec. They are models of the plan matrix,
--- unlisted.
local DeepSeek = require 'nnscaler.models.deepseek'
local F = require 'nnscaler.functional'
local Llama = require 'nnscaler.models.llama'
local T = require 'nnscaler.tensor'
local models = require 'tests.equivalence.plans.models'
local nn = require 'nnscaler.nn'

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

-- A router whose losses count what a mask leaves, as many tokens as there are.
local Masked = nn.class 'Masked'
function Masked:init()
  self.table, self.experts = nn.Embedding(16, 8), nn.Experts(8, 12, 4, { chosen = 2 })
  self.head = nn.Linear(8, 16)
end
function Masked:forward(s)
  local x = self.table(s.x)
  local y, routing = self.experts(x, s.mask)
  local loss = F.cross_entropy(self.head(x + y):view { 16, 16 }, s.y:view { 16 })
  return loss + self.experts:balance(routing) * 0.3 + self.experts:z_loss(routing) * 0.1
end
models['experts, masked'] = { make = function() return Masked() end, sample = function(g)
  local s = sample(g)
  s.mask = T.randint(0, 3, { 2, 8 }, { dtype = 'int64', generator = g }):ne(0):to 'int64'
  s.y = s.y:masked_fill(s.mask:eq(0), -100)
  return s
end }
