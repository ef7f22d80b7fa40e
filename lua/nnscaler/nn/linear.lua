--- Linear and bilinear layers.
local F = require 'nnscaler.functional'
local Module = require 'nnscaler.nn.module'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local fused_linear = require 'nnscaler.nn.fused_linear'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'

local M = {}

--- y = x Wᵀ + b over the last dimension.
---@class nnscaler.nn.Linear : nnscaler.nn.Module
---@field weight nnscaler.Tensor [outputs, inputs]
---@field bias nnscaler.Tensor|nil
M.Linear = Module.class 'Linear'

---@param inputs integer
---@param outputs integer
---@param options? { bias?: boolean, init?: table, bias_init?: table, dtype?: string }
function M.Linear:init(inputs, outputs, options)
  check.integer('nn.Linear', 'inputs', inputs)
  check.integer('nn.Linear', 'outputs', outputs)
  local default = init.linear_default(inputs)
  local o = check.options('nn.Linear', options,
    { bias = true, init = default, bias_init = default, dtype = 'float32' })
  self.weight = kinds.parameter { shape = { outputs, inputs }, dtype = o.dtype, init = o.init }
  if o.bias then
    self.bias = kinds.parameter { shape = { outputs }, dtype = o.dtype, init = o.bias_init }
  end
end

---@param x nnscaler.Tensor [..., inputs]
---@return nnscaler.Tensor # [..., outputs]
function M.Linear:forward(x) return aten.linear(x, self.weight, self.bias) end

--- Several linear layers of one input, computed as one: y₁, y₂, … = x W₁ᵀ + b₁, x W₂ᵀ + b₂, …
--- Files hold the weights one below the other, as [count · outputs, inputs].
---@class nnscaler.nn.FusedLinear : nnscaler.nn.Module
---@field weight nnscaler.Tensor [count, outputs, inputs]
---@field bias nnscaler.Tensor|nil [count, outputs]
M.FusedLinear = Module.class 'FusedLinear'

---@param inputs integer
---@param outputs integer of each layer
---@param count integer of layers
---@param options? { bias?: boolean, init?: table, bias_init?: table, dtype?: string }
function M.FusedLinear:init(inputs, outputs, count, options)
  check.integer('nn.FusedLinear', 'inputs', inputs)
  check.integer('nn.FusedLinear', 'outputs', outputs)
  check.integer('nn.FusedLinear', 'count', count)
  local default = init.linear_default(inputs)
  local o = check.options('nn.FusedLinear', options,
    { bias = true, init = default, bias_init = default, dtype = 'float32' })
  self.file_shapes = { weight = { count * outputs, inputs }, bias = { count * outputs } }
  self.weight = kinds.parameter { shape = { count, outputs, inputs }, dtype = o.dtype,
    init = o.init }
  if o.bias then
    self.bias = kinds.parameter { shape = { count, outputs }, dtype = o.dtype, init = o.bias_init }
  end
end

---@param x nnscaler.Tensor [..., inputs]
---@return nnscaler.Tensor ... [..., outputs], one per layer
function M.FusedLinear:forward(x) return fused_linear(x, self.weight, self.bias) end

--- y = x₁ᵀ W x₂ + b over the last dimensions.
---@class nnscaler.nn.Bilinear : nnscaler.nn.Module
---@field weight nnscaler.Tensor [out_features, in1_features, in2_features]
---@field bias nnscaler.Tensor|nil
M.Bilinear = Module.class 'Bilinear'

---@param in1_features integer
---@param in2_features integer
---@param out_features integer
---@param options? { bias?: boolean, dtype?: string }
function M.Bilinear:init(in1_features, in2_features, out_features, options)
  local area = 'nn.Bilinear'
  check.integer(area, 'in1_features', in1_features)
  check.integer(area, 'in2_features', in2_features)
  check.integer(area, 'out_features', out_features)
  local o = check.options(area, options, { bias = true, dtype = 'float32' })
  local how = init.linear_default(in1_features)
  self.weight = kinds.parameter { shape = { out_features, in1_features, in2_features },
    dtype = o.dtype, init = how }
  if o.bias then
    self.bias = kinds.parameter { shape = { out_features }, dtype = o.dtype, init = how }
  end
end

---@param x1 nnscaler.Tensor [..., in1_features]
---@param x2 nnscaler.Tensor [..., in2_features]
---@return nnscaler.Tensor # [..., out_features]
function M.Bilinear:forward(x1, x2) return F.bilinear(x1, x2, self.weight, self.bias) end

return M
