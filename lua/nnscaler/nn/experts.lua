--- Mixtures of experts: a router sends each token to a few of many feed-forward parts.
local F = require 'nnscaler.functional'
local Linear = require('nnscaler.nn.linear').Linear
local Module = require 'nnscaler.nn.module'
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'
local own = require('nnscaler.ops').nnscaler

local M = {}

--- y = Σ over the chosen experts of weight · w2 (act(w1 x) ∘ w3 x), without w3 if it is not gated.
--- The weights are the greatest probabilities of a softmax over experts (Shazeer 2017). No token is
--- dropped, unless `capacity` says how much of its even share an expert takes (Fedus 2021): then
--- choices that come later in the text are left out. Under plans rows go to the devices of their
--- experts; memory for those that arrive is that of the most that can, so `capacity` saves it.
---@class nnscaler.nn.Experts : nnscaler.nn.Module
---@field gate nnscaler.nn.Linear the router, without bias
---@field w1 nnscaler.Tensor [experts, inner, width]
---@field w2 nnscaler.Tensor [experts, width, inner]
---@field w3 nnscaler.Tensor|nil [experts, inner, width]
M.Experts = Module.class 'Experts'

---@param width integer
---@param inner integer inner width of an expert
---@param experts integer
---@param options? { chosen?: integer, activation?: 'silu'|'gelu'|'relu', gated?: boolean,
---   normalize?: boolean, scale?: number, capacity?: number, init?: table, dtype?: string }
---   chosen: experts of a token, 2; normalize: weights of a token add up to 1 (default); scale:
---   they are multiplied by it; capacity: 1.25 lets an expert take a quarter more than its even
---   share
function M.Experts:init(width, inner, experts, options)
  local area = 'nn.Experts'
  check.integer(area, 'width', width)
  check.integer(area, 'inner', inner)
  check.integer(area, 'experts', experts)
  local o = check.options(area, options, { chosen = 2, activation = 'silu', gated = true,
    normalize = true, scale = 1, capacity = check.none, init = check.none, dtype = 'float32' })
  check.integer(area, 'chosen', o.chosen)
  if o.chosen > experts then
    fail('usage', area, ('%d experts of %d for each token'):format(o.chosen, experts))
  end
  check.one_of(area, 'activation', o.activation, { 'silu', 'gelu', 'relu' })
  check.number(area, 'scale', o.scale)
  if o.capacity and check.number(area, 'capacity', o.capacity) <= 0 then
    fail('usage', area, ('capacity = %g; expected more than 0'):format(o.capacity))
  end
  self.experts, self.options = experts, o
  local function matrices(outputs, inputs)
    return kinds.parameter { shape = { experts, outputs, inputs }, dtype = o.dtype,
      init = o.init or init.linear_default(inputs) }
  end
  self.gate = Linear(width, experts, { bias = false, init = o.init, dtype = o.dtype })
  self.w1, self.w2 = matrices(inner, width), matrices(width, inner)
  if o.gated then self.w3 = matrices(inner, width) end
end

---@class nnscaler.nn.Routing what a router did
---@field scores nnscaler.Tensor [..., experts]
---@field probability nnscaler.Tensor [..., experts]
---@field index nnscaler.Tensor int64 [..., chosen]
---@field tokens integer

---@param x nnscaler.Tensor [..., width]
---@return nnscaler.Tensor y, nnscaler.nn.Routing routing
function M.Experts:forward(x)
  local o, count = self.options, self.experts
  local scores = self.gate(x)
  local probability = F.softmax(scores, -1)
  local weight, index = probability:topk(o.chosen, -1)
  if o.normalize then weight = weight / weight:sum(-1, true) end
  if o.scale ~= 1 then weight = weight * o.scale end
  local tokens = 1
  for d = 1, #x.shape - 1 do tokens = tokens * x.shape[d] end
  local limit, kept = 0, index
  if o.capacity then
    limit = math.ceil(o.capacity * tokens * o.chosen / count)
    kept = own.limit_experts(index, count, limit)
  end
  local up, gate = self.w3 or self.w1, self.w3 and self.w1
  local y = own.experts(x, kept, weight, up, self.w2, gate, o.activation, limit)
  return y, { scores = scores, probability = probability, index = index, tokens = tokens }
end

--- Σ over experts of experts · share of tokens · mean probability: least, the number of experts
--- that a token chooses, where all are chosen alike (Fedus 2021).
---@param routing nnscaler.nn.Routing
---@return nnscaler.Tensor
function M.Experts:balance(routing)
  local lead = {}
  for d = 1, #routing.index.shape - 1 do lead[d] = d - 1 end
  local of = { unpack(lead) }
  of[#of + 1] = #lead
  local chosen = F.one_hot(routing.index, self.experts):sum(of):to(routing.probability.dtype)
  return (chosen * routing.probability:sum(lead)):sum() * (self.experts / routing.tokens ^ 2)
end

--- Mean square of the logarithm of Σ exp of a token's scores (Zoph 2022).
---@param routing nnscaler.nn.Routing
---@return nnscaler.Tensor
function M.Experts:z_loss(routing)
  return routing.scores:logsumexp { -1 }:square():mean()
end

return M
