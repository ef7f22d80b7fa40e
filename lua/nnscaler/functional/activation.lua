--- Activations: element by element, gated halves, and softmax.
local arguments = require 'nnscaler.functional.arguments'
local aten = require('nnscaler.ops').aten
local noise = require 'nnscaler.functional.noise'

local M = {}

---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.relu(input) return aten.relu(input) end
---@param input nnscaler.Tensor
---@param approximate? 'none'|'tanh'
---@return nnscaler.Tensor
function M.gelu(input, approximate)
  if approximate and approximate ~= 'none' then
    return aten.gelu(input, { approximate = approximate })
  end
  return aten.gelu(input)
end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.silu(input) return aten.silu(input) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.mish(input) return aten.mish(input) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.tanh(input) return aten.tanh(input) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.sigmoid(input) return aten.sigmoid(input) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.hardswish(input) return aten.hardswish(input) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.relu6(input) return aten.relu6(input) end
---@param input nnscaler.Tensor
---@param negative_slope? number 0.01
---@return nnscaler.Tensor
function M.leaky_relu(input, negative_slope)
  return aten.leaky_relu(input, negative_slope or 0.01)
end
---@param input nnscaler.Tensor
---@param alpha? number 1
---@return nnscaler.Tensor
function M.elu(input, alpha) return aten.elu(input, alpha or 1) end
---@param input nnscaler.Tensor
---@param beta? number 1
---@param threshold? number 20
---@return nnscaler.Tensor
function M.softplus(input, beta, threshold)
  return aten.softplus(input, beta or 1, threshold or 20)
end
--- First half times the sigmoid of the second.
---@param input nnscaler.Tensor
---@param dim? integer -1
---@return nnscaler.Tensor
function M.glu(input, dim) return aten.glu(input, dim or -1) end
---@param input nnscaler.Tensor
---@param dim integer
---@param dtype? string
---@return nnscaler.Tensor
function M.softmax(input, dim, dtype) return aten.softmax(input, dim, dtype) end
---@param input nnscaler.Tensor
---@param dim integer
---@param dtype? string
---@return nnscaler.Tensor
function M.log_softmax(input, dim, dtype) return aten.log_softmax(input, dim, dtype) end
---@param input nnscaler.Tensor
---@param dim integer
---@param dtype? string
---@return nnscaler.Tensor
function M.softmin(input, dim, dtype) return aten.softmax(aten.neg(input), dim, dtype) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.selu(input) return aten.selu(input) end
---@param input nnscaler.Tensor
---@param alpha? number 1
---@return nnscaler.Tensor
function M.celu(input, alpha) return aten.celu(input, alpha or 1) end
---@param input nnscaler.Tensor
---@param min_val? number -1
---@param max_val? number 1
---@return nnscaler.Tensor
function M.hardtanh(input, min_val, max_val)
  return aten.hardtanh(input, min_val or -1, max_val or 1)
end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.hardsigmoid(input) return aten.hardsigmoid(input) end
---@param input nnscaler.Tensor
---@param lambd? number 0.5
---@return nnscaler.Tensor
function M.hardshrink(input, lambd) return aten.hardshrink(input, lambd or 0.5) end
---@param input nnscaler.Tensor
---@param lambd? number 0.5
---@return nnscaler.Tensor
function M.softshrink(input, lambd) return aten.softshrink(input, lambd or 0.5) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.tanhshrink(input) return aten.sub(input, aten.tanh(input)) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.softsign(input) return aten.div(input, aten.abs(input) + 1) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.logsigmoid(input) return aten.log_sigmoid(input) end
--- The input where it is above the threshold, else the value.
---@param input nnscaler.Tensor
---@param threshold number
---@param value number
---@return nnscaler.Tensor
function M.threshold(input, threshold, value) return aten.threshold(input, threshold, value) end
--- weight · x where x < 0; a weight of one element, or one per channel (dimension 1).
---@param input nnscaler.Tensor
---@param weight nnscaler.Tensor
---@return nnscaler.Tensor
function M.prelu(input, weight) return aten.prelu(input, weight) end

--- Leaky rectifier whose slope is drawn for each element in training; else it is their mean.
---@param input nnscaler.Tensor
---@param lower? number 1/8
---@param upper? number 1/3
---@param training? boolean false
---@return nnscaler.Tensor
function M.rrelu(input, lower, upper, training)
  lower, upper = lower or 1 / 8, upper or 1 / 3
  if not training then return aten.leaky_relu(input, (lower + upper) / 2) end
  local slope = noise.rand_like(input) * (upper - lower) + lower
  return aten.where(aten.ge(input, 0), input, aten.mul(input, slope))
end

local gumbel_softmax = arguments.reader('gumbel_softmax', { 'dim', 'hard', 'tau' })
--- Softmax of scores with Gumbel noise: samples of classes by their probabilities.
---@param logits nnscaler.Tensor
---@param options? { tau?: number, hard?: boolean, dim?: integer } tau: temperature, 1; hard:
---   one-hot values with the gradient of soft ones; dim: -1
---@return nnscaler.Tensor
function M.gumbel_softmax(logits, options)
  local o = gumbel_softmax(options)
  local dim = o.dim or -1
  -- Never a draw of 0, whose noise would have no end.
  local exponential = aten.neg(aten.log(aten.clamp_min(noise.rand_like(logits), 1e-20)))
  local noisy = aten.sub(logits, aten.log(aten.clamp_min(exponential, 1e-20)))
  local soft = aten.softmax(aten.div(noisy, o.tau or 1), dim)
  if not o.hard then return soft end
  local hot = aten.to(aten.eq(soft, aten.amax(soft, { dim }, true)), soft.dtype)
  return aten.add(aten.detach(aten.sub(hot, soft)), soft)
end

return M
