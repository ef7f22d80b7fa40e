--- Normalisation: over dimensions, groups of channels, the batch, or neighbours.
local arguments = require 'nnscaler.functional.arguments'
local aten = require('nnscaler.ops').aten

local M = {}

--- Normalises over the last dimensions.
---@param input nnscaler.Tensor
---@param normalized_shape integer[]
---@param weight? nnscaler.Tensor
---@param bias? nnscaler.Tensor
---@param eps? number 1e-5
---@return nnscaler.Tensor
function M.layer_norm(input, normalized_shape, weight, bias, eps)
  return aten.layer_norm(input, normalized_shape, weight, bias, eps or 1e-5)
end

--- Divides by the root mean square over the last dimensions.
---@param input nnscaler.Tensor
---@param normalized_shape integer[]
---@param weight? nnscaler.Tensor
---@param eps? number of the dtype by default
---@return nnscaler.Tensor
function M.rms_norm(input, normalized_shape, weight, eps)
  return aten.rms_norm(input, normalized_shape, weight, eps)
end

--- Normalises each of the groups of channels (dimension 1).
---@param input nnscaler.Tensor
---@param groups integer
---@param weight? nnscaler.Tensor
---@param bias? nnscaler.Tensor
---@param eps? number 1e-5
---@return nnscaler.Tensor
function M.group_norm(input, groups, weight, bias, eps)
  return aten.group_norm(input, groups, weight, bias, eps or 1e-5)
end

---@class nnscaler.BatchNormOptions
---@field weight? nnscaler.Tensor
---@field bias? nnscaler.Tensor
---@field training? boolean
---@field momentum? number 0.1
---@field eps? number 1e-5

local batch_norm = arguments.reader('batch_norm',
  { 'bias', 'eps', 'momentum', 'training', 'weight' })

--- Normalises each channel (dimension 1) over the batch; in training it updates the statistics.
---@param input nnscaler.Tensor
---@param running_mean? nnscaler.Tensor
---@param running_var? nnscaler.Tensor
---@param options? nnscaler.BatchNormOptions
---@return nnscaler.Tensor
function M.batch_norm(input, running_mean, running_var, options)
  local o = batch_norm(options)
  return aten.batch_norm(input, o.weight, o.bias, running_mean, running_var, o.training or false,
    o.momentum or 0.1, o.eps or 1e-5, true)
end

local normalize = arguments.reader('normalize', { 'dim', 'eps', 'p' })

--- Divides by the p-norm over a dimension.
---@param input nnscaler.Tensor
---@param options? { p?: number, dim?: integer, eps?: number }
---@return nnscaler.Tensor
function M.normalize(input, options)
  local o = normalize(options)
  local norm = aten.norm(input, o.p or 2, { o.dim or 1 }, true)
  return aten.div(input, aten.expand_as(aten.clamp_min(norm, o.eps or 1e-12), input))
end

local instance_norm = arguments.reader('instance_norm',
  { 'bias', 'eps', 'momentum', 'use_input_stats', 'weight' })

--- Normalises each channel of each sample over its image; in training it updates the statistics,
--- where there are some, with the mean over the batch.
---@param input nnscaler.Tensor [batch, channels, …]
---@param running_mean? nnscaler.Tensor
---@param running_var? nnscaler.Tensor
---@param options? nnscaler.BatchNormOptions with use_input_stats (true by default) in place of
---   training
---@return nnscaler.Tensor
function M.instance_norm(input, running_mean, running_var, options)
  local o = instance_norm(options)
  local eps, momentum = o.eps or 1e-5, o.momentum or 0.1
  if o.use_input_stats == false then
    return aten.batch_norm(input, o.weight, o.bias, running_mean, running_var, false, momentum,
      eps, true)
  end
  if running_mean then
    local x = aten.flatten(aten.detach(input), 2)
    running_mean:lerp_(aten.mean(aten.mean(x, { 2 }), { 0 }), momentum)
    running_var:lerp_(aten.mean(aten.var(x, { 2 }), { 0 }), momentum)
  end
  return aten.group_norm(input, input.shape[2], o.weight, o.bias, eps)
end

--- Divides by (k + alpha · mean of squares over `size` neighbouring channels) ^ beta.
---@param input nnscaler.Tensor [batch, channels, …]
---@param size integer
---@param alpha? number 1e-4
---@param beta? number 0.75
---@param k? number 1
---@return nnscaler.Tensor
function M.local_response_norm(input, size, alpha, beta, k)
  local squares = aten.unsqueeze(aten.flatten(aten.square(input), 2), 1)
  local padded = aten.constant_pad_nd(squares,
    { 0, 0, math.floor(size / 2), math.floor((size - 1) / 2) }, 0)
  local means = aten.view_as(aten.squeeze(aten.avg_pool2d(padded, { size, 1 }, { 1, 1 }), 1), input)
  return aten.div(input, aten.pow(means * (alpha or 1e-4) + (k or 1), beta or 0.75))
end

return M
