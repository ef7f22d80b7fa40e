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
---@field tokens integer|nnscaler.Tensor how many count
---@field counts nnscaler.Tensor|nil boolean [...], of those

-- Which tokens count, of a mask that fits.
local function counted(x, mask)
  local lead = { unpack(x.shape, 1, #x.shape - 1) }
  if table.concat(mask.shape, ', ') ~= table.concat(lead, ', ') then
    fail('model', 'nn.Experts', ('the mask is [%s]; expected one number a token: [%s]'):format(
      table.concat(mask.shape, ', '), table.concat(lead, ', ')))
  end
  return mask:ne(0)
end

---@param x nnscaler.Tensor [..., width]
---@param mask? nnscaler.Tensor [...], 0 where there is no token: it goes to no expert, gets zeros,
---  and counts nowhere
---@return nnscaler.Tensor y, nnscaler.nn.Routing routing
function M.Experts:forward(x, mask)
  local o, count = self.options, self.experts
  local counts = mask and counted(x, mask)
  local scores = self.gate(x)
  local probability = F.softmax(scores, -1)
  local weight, index = probability:topk(o.chosen, -1)
  if o.normalize then weight = weight / weight:sum(-1, true) end
  if o.scale ~= 1 then weight = weight * o.scale end
  local tokens = 1
  for d = 1, #x.shape - 1 do tokens = tokens * x.shape[d] end
  local limit, kept = 0, index
  if counts then kept = index:masked_fill(counts:logical_not():unsqueeze(-1), -1) end
  if o.capacity then
    limit = math.ceil(o.capacity * tokens * o.chosen / count)
    kept = own.limit_experts(kept, count, limit)
  end
  local up, gate = self.w3 or self.w1, self.w3 and self.w1
  local y = own.experts(x, kept, weight, up, self.w2, gate, o.activation, limit)
  -- A micro-batch without any token has losses of zero.
  if counts then tokens = counts:sum():clamp_min(1):to(probability.dtype) end
  return y, { scores = scores, probability = probability, index = index, tokens = tokens,
    counts = counts or nil }
end

-- What a router tells of each token, zeros where none is.
local function of_tokens(routing, x)
  local counts = routing.counts
  if not counts then return x end
  for _ = #counts.shape + 1, #x.shape do counts = counts:unsqueeze(-1) end
  return x * counts:to(x.dtype)
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
  local chosen = of_tokens(routing, F.one_hot(routing.index, self.experts)):sum(of)
  local probability = of_tokens(routing, routing.probability)
  local sum = (chosen:to(probability.dtype) * probability:sum(lead)):sum()
  return sum * self.experts / (routing.tokens * routing.tokens)
end

--- Mean square of the logarithm of Σ exp of a token's scores (Zoph 2022).
---@param routing nnscaler.nn.Routing
---@return nnscaler.Tensor
function M.Experts:z_loss(routing)
  local squares = routing.scores:logsumexp { -1 }:square()
  return of_tokens(routing, squares):sum() / routing.tokens
end

return M
