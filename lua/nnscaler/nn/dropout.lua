--- Dropout. Which elements fall is a function of the run's seed, the step, the micro-batch, this
--- module's path and the index of the element: there is no generator.
local Module = require 'nnscaler.nn.module'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'

local M = {}

--- In training, zeroes elements with probability p and scales the rest by 1 / (1 - p).
---@class nnscaler.nn.Dropout : nnscaler.nn.Module
M.Dropout = Module.class 'Dropout'

---@param p? number 0.5 by default
function M.Dropout:init(p) self.p = check.probability('nn.Dropout', p or 0.5) end

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.Dropout:forward(x)
  if self.p == 0 or not self.training then return x end
  return aten.dropout(x, self.p, true)
end

return M
