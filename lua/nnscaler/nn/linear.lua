--- Linear layers and embeddings: tables of weights, indexed or multiplied.
local Module = require 'nnscaler.nn.module'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
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
