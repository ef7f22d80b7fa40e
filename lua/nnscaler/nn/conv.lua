--- Convolution and pooling of images [batch, channels, height, width].
local Module = require 'nnscaler.nn.module'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'

local M = {}

--- Two-dimensional convolution (cross-correlation).
---@class nnscaler.nn.Conv2d : nnscaler.nn.Module
---@field weight nnscaler.Tensor [outputs, inputs / groups, height, width]
---@field bias nnscaler.Tensor|nil
M.Conv2d = Module.class 'Conv2d'

---@param inputs integer channels
---@param outputs integer channels
---@param kernel integer|integer[]
---@param options? { stride?: integer|integer[], padding?: integer|integer[],
---   dilation?: integer|integer[], groups?: integer, bias?: boolean, dtype?: string }
function M.Conv2d:init(inputs, outputs, kernel, options)
  local area = 'nn.Conv2d'
  check.integer(area, 'inputs', inputs)
  check.integer(area, 'outputs', outputs)
  local size = check.pair(area, 'kernel', kernel)
  local o = check.options(area, options,
    { stride = 1, padding = 0, dilation = 1, groups = 1, bias = true, dtype = 'float32' })
  self.groups = check.integer(area, 'groups', o.groups)
  if inputs % o.groups ~= 0 or outputs % o.groups ~= 0 then
    fail('usage', area, ('%d groups do not divide %d input and %d output channels'):format(
      o.groups, inputs, outputs))
  end
  self.stride = check.pair(area, 'stride', o.stride)
  self.padding = check.pair(area, 'padding', o.padding, 0)
  self.dilation = check.pair(area, 'dilation', o.dilation)
  local how = init.linear_default(inputs / o.groups * size[1] * size[2])
  self.weight = kinds.parameter { dtype = o.dtype, init = how,
    shape = { outputs, inputs / o.groups, size[1], size[2] } }
  if o.bias then
    self.bias = kinds.parameter { shape = { outputs }, dtype = o.dtype, init = how }
  end
end

---@param x nnscaler.Tensor [batch, inputs, height, width]
---@return nnscaler.Tensor
function M.Conv2d:forward(x)
  return aten.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation,
    self.groups)
end

--- The largest element of each window.
---@class nnscaler.nn.MaxPool2d : nnscaler.nn.Module
M.MaxPool2d = Module.class 'MaxPool2d'

---@param kernel integer|integer[]
---@param options? { stride?: integer|integer[], padding?: integer|integer[] } stride: the kernel by
---   default
function M.MaxPool2d:init(kernel, options)
  local area = 'nn.MaxPool2d'
  local o = check.options(area, options, { stride = kernel, padding = 0 })
  self.kernel = check.pair(area, 'kernel', kernel)
  self.stride = check.pair(area, 'stride', o.stride)
  self.padding = check.pair(area, 'padding', o.padding, 0)
end

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.MaxPool2d:forward(x)
  return aten.max_pool2d(x, self.kernel, self.stride, self.padding)
end

--- Means over windows that give an output of the size asked for.
---@class nnscaler.nn.AdaptiveAvgPool2d : nnscaler.nn.Module
M.AdaptiveAvgPool2d = Module.class 'AdaptiveAvgPool2d'

---@param size integer|integer[] of the output
function M.AdaptiveAvgPool2d:init(size)
  self.size = check.pair('nn.AdaptiveAvgPool2d', 'size', size)
end

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.AdaptiveAvgPool2d:forward(x) return aten.adaptive_avg_pool2d(x, self.size) end

return M
