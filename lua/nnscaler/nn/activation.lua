--- Activations: element by element, without parameters.
local Module = require 'nnscaler.nn.module'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'

local M = {}

--- x Φ(x), exactly or by the tanh approximation.
---@class nnscaler.nn.GELU : nnscaler.nn.Module
M.GELU = Module.class 'GELU'

---@param options? { approximate?: 'none'|'tanh' }
function M.GELU:init(options)
  local o = check.options('nn.GELU', options, { approximate = 'none' })
  self.how = { approximate = check.one_of('nn.GELU', 'approximate', o.approximate,
    { 'none', 'tanh' }) }
end

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.GELU:forward(x) return aten.gelu(x, self.how) end

--- max(x, 0).
---@class nnscaler.nn.ReLU : nnscaler.nn.Module
M.ReLU = Module.class 'ReLU'

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.ReLU:forward(x) return aten.relu(x) end

--- x sigmoid(x).
---@class nnscaler.nn.SiLU : nnscaler.nn.Module
M.SiLU = Module.class 'SiLU'

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.SiLU:forward(x) return aten.silu(x) end

---@class nnscaler.nn.Tanh : nnscaler.nn.Module
M.Tanh = Module.class 'Tanh'

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.Tanh:forward(x) return aten.tanh(x) end

---@class nnscaler.nn.Sigmoid : nnscaler.nn.Module
M.Sigmoid = Module.class 'Sigmoid'

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.Sigmoid:forward(x) return aten.sigmoid(x) end

return M
