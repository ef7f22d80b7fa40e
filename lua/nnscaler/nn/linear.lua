--- Linear layers and embeddings: tables of weights, indexed or multiplied.
local Module = require 'nnscaler.nn.module'
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'
local register_op = require 'nnscaler.register_op'

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

-- Several linear layers in one product. The rows of all layers are cut alike, so that heads of
-- query, key and value stay together.
local fused_linear = register_op('nnscaler::fused_linear', {
  kind = 'linear',
  annotation = function(_, weight, bias)
    local results = {}
    for i = 1, weight.shape[1] do results[i] = '* n' end
    local left = bias and ('* k^, %d n k^, %d n'):format(weight.shape[1], weight.shape[1])
      or ('* k+, %d n k+'):format(weight.shape[1])
    return left .. ' -> ' .. table.concat(results, ', ')
  end,
  body = function(x, weight, bias)
    local y = aten.linear(x, weight:flatten(0, 1), bias and bias:flatten(0, 1))
    return unpack(y:split(weight.shape[2], -1))
  end,
  inputs = function(generator)
    local function draw(...)
      return T.randn({ ... }, { generator = generator, dtype = 'float64' })
    end
    return { draw(2, 3, 4), draw(3, 6, 4), draw(3, 6) }
  end,
})

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

--- Rows of a table, picked by index.
---@class nnscaler.nn.Embedding : nnscaler.nn.Module
---@field weight nnscaler.Tensor [count, width]
M.Embedding = Module.class 'Embedding'

---@param count integer rows of the table
---@param width integer
---@param options? { init?: table, dtype?: string }
function M.Embedding:init(count, width, options)
  check.integer('nn.Embedding', 'count', count)
  check.integer('nn.Embedding', 'width', width)
  local o = check.options('nn.Embedding', options, { init = init.normal(), dtype = 'float32' })
  self.weight = kinds.parameter { shape = { count, width }, dtype = o.dtype, init = o.init }
end

---@param index nnscaler.Tensor integers [...]
---@return nnscaler.Tensor # [..., width]
function M.Embedding:forward(index) return aten.embedding(self.weight, index) end

return M
