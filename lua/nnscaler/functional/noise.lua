--- Noise: dropout in its forms, and random numbers. Draws follow from seed, module path, step and
--- micro-batch, so that every plan draws the same elements: there is no hidden state.
local aten = require('nnscaler.ops').aten
local fail = require 'nnscaler.fail'

local M = {}

local function probability(p, what)
  p = p or 0.5
  if type(p) ~= 'number' or not (p >= 0 and p <= 1) then
    fail('model', 'functional.' .. what, ('p is %s; expected a number from 0 to 1')
      :format(tostring(p)))
  end
  return p
end

--- Zeroes elements with probability p and scales the others. Which ones follows from seed, module
--- path, step and micro-batch: there is no hidden state.
---@param input nnscaler.Tensor
---@param p? number 0.5
---@param training? boolean true by default
---@return nnscaler.Tensor
function M.dropout(input, p, training)
  return aten.dropout(input, probability(p, 'dropout'), training ~= false)
end

-- --- noise -------------------------------------------------------------------------------------
-- As those of dropout, draws follow from seed, module path, step and micro-batch, so that every
-- plan draws the same elements. No gradient leads through them.

--- Standard normal noise of the input's shape.
---@param input nnscaler.Tensor floating point
---@param options? { dtype?: string }
---@return nnscaler.Tensor
function M.randn_like(input, options) return aten.randn_like(input, options) end

--- Noise of the input's shape, uniform from 0 up to 1.
---@param input nnscaler.Tensor floating point
---@param options? { dtype?: string }
---@return nnscaler.Tensor
function M.rand_like(input, options) return aten.rand_like(input, options) end

--- Normal noise of the mean's shape; gradients reach mean and std.
---@param mean nnscaler.Tensor floating point
---@param std nnscaler.Tensor|number that broadcasts to it
---@return nnscaler.Tensor
function M.normal(mean, std) return aten.randn_like(mean) * std + mean end

--- 1 with probability p, else 0.
---@param p nnscaler.Tensor of probabilities
---@return nnscaler.Tensor of its shape and dtype
function M.bernoulli(p) return aten.bernoulli(p) end

-- --- whole channels ------------------------------------------------------------------------------

-- Ones in the shape of the input without its last n axes, each of size 1 there.
local function one_a_channel(input, n)
  local x = aten.detach(input)
  for axis = 1, n do x = aten.narrow(x, -axis, 0, 1) end
  return aten.ones_like(x)
end

local function channels(n)
  local what = ('dropout%dd'):format(n)
  return function(input, p, training)
    p = probability(p, what)
    if p == 0 or training == false then return input end
    return aten.mul(input, aten.dropout(one_a_channel(input, n), p, true))
  end
end

--- Dropout of whole channels of [batch, channels, …] with 1, 2 or 3 axes behind.
---@alias nnscaler.ChannelDropout fun(input, p?: number, training?: boolean): any
---@type nnscaler.ChannelDropout
M.dropout1d = channels(1)
M.dropout2d = channels(2)
M.dropout3d = channels(3)

-- Elements that fall take SELU's lowest value; then mean and variance are as before. `mask` has
-- 1 / (1 - p) where an element stays.
local function alpha(input, mask, p)
  local low = -1.7580993408473766
  local keep = mask * (1 - p)
  local scale = ((1 - p) * (1 + p * low * low)) ^ -0.5
  return aten.add(aten.mul(input, keep) * scale, (1 - keep) * (low * scale) - scale * p * low)
end

--- Dropout for networks of SELU units: keeps mean and variance.
---@param input nnscaler.Tensor
---@param p? number 0.5
---@param training? boolean false by default, as in PyTorch
---@return nnscaler.Tensor
function M.alpha_dropout(input, p, training)
  p = probability(p, 'alpha_dropout')
  if p == 0 or not training then return input end
  if p == 1 then return aten.mul(input, 0) end
  return alpha(input, aten.dropout(aten.ones_like(aten.detach(input)), p, true), p)
end

--- The same for whole channels of [batch, channels, …].
---@param input nnscaler.Tensor
---@param p? number 0.5
---@param training? boolean false by default
---@return nnscaler.Tensor
function M.feature_alpha_dropout(input, p, training)
  p = probability(p, 'feature_alpha_dropout')
  if p == 0 or not training then return input end
  if p == 1 then return aten.mul(input, 0) end
  return alpha(input, aten.dropout(one_a_channel(input, input:dim() - 2), p, true), p)
end

return M
