--- Multi-head attention with the weights that PyTorch's layer of this name has.
local Linear = require('nnscaler.nn.linear').Linear
local Module = require 'nnscaler.nn.module'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local fused_linear = require 'nnscaler.nn.fused_linear'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'

local M = {}

--- softmax(q kᵀ / √d) v for several heads at once, between two linear layers. Without dropout the
--- matrix of all pairs is never in memory. Plans cut it by heads.
---@class nnscaler.nn.MultiHeadAttention : nnscaler.nn.Module
---@field in_proj_weight nnscaler.Tensor [3, width, width]: of queries, keys, values; files hold
---  them one below the other
---@field in_proj_bias nnscaler.Tensor|nil [3, width]
---@field out_proj nnscaler.nn.Linear
M.MultiHeadAttention = Module.class 'MultiHeadAttention'

---@param width integer
---@param heads integer must divide the width
---@param options? { bias?: boolean, dropout?: number, dtype?: string }
function M.MultiHeadAttention:init(width, heads, options)
  local area = 'nn.MultiHeadAttention'
  check.integer(area, 'width', width)
  check.integer(area, 'heads', heads)
  if width % heads ~= 0 then
    fail('usage', area, ('%d heads do not divide width %d'):format(heads, width))
  end
  local o = check.options(area, options, { bias = true, dropout = 0, dtype = 'float32' })
  self.width, self.heads, self.dropout = width, heads, check.probability(area, o.dropout)
  self.file_shapes = { in_proj_weight = { 3 * width, width }, in_proj_bias = { 3 * width } }
  self.in_proj_weight = kinds.parameter { shape = { 3, width, width }, dtype = o.dtype,
    init = init.xavier_uniform(width, 3 * width) }
  if o.bias then
    self.in_proj_bias = kinds.parameter { shape = { 3, width }, dtype = o.dtype }
  end
  self.out_proj = Linear(width, width,
    { bias = o.bias, bias_init = init.zeros(), dtype = o.dtype })
end

-- Heads of the projections first … first + count - 1.
function M.MultiHeadAttention:_project(x, first, count)
  local weight, bias = self.in_proj_weight, self.in_proj_bias
  if count < 3 then
    weight, bias = weight:narrow(0, first, count), bias and bias:narrow(0, first, count)
  end
  local parts = { fused_linear(x, weight, bias) }
  for i, part in ipairs(parts) do
    parts[i] = part:unflatten(-1, { self.heads, self.width / self.heads }):transpose(1, 2)
  end
  return unpack(parts)
end

---@param query nnscaler.Tensor [batch, T, width]
---@param memory? nnscaler.Tensor [batch, S, width] what is attended to; by default the query
---@param options? { causal?: boolean, mask?: nnscaler.Tensor } mask: true where a query may look,
---   or numbers added to the scores; [T, S] or more
---@return nnscaler.Tensor # [batch, T, width]
function M.MultiHeadAttention:forward(query, memory, options)
  local o = check.options('nn.MultiHeadAttention', options, { causal = false, mask = check.none })
  local q, k, v
  if memory then
    q = self:_project(query, 0, 1)
    k, v = self:_project(memory, 1, 2)
  else
    q, k, v = self:_project(query, 0, 3)
  end
  local y = aten.scaled_dot_product_attention(q, k, v, o.mask,
    self.training and self.dropout or 0, o.causal)
  return self.out_proj(y:transpose(1, 2):flatten(-2))
end

return M
