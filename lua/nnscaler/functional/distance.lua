--- Distances and similarities of vectors.
local aten = require('nnscaler.ops').aten

local M = {}

--- Cosine of the angle between vectors along a dimension.
---@param x1 nnscaler.Tensor
---@param x2 nnscaler.Tensor that broadcasts to it
---@param dim? integer 1
---@param eps? number least norm, 1e-8
---@return nnscaler.Tensor
function M.cosine_similarity(x1, x2, dim, eps)
  dim, eps = dim or 1, eps or 1e-8
  local function size(x) return aten.clamp_min(aten.norm(x, 2, { dim }, true), eps) end
  return aten.sum(aten.mul(aten.div(x1, size(x1)), aten.div(x2, size(x2))), { dim })
end

--- ‖x₁ - x₂ + eps‖ over the last dimension.
---@param x1 nnscaler.Tensor
---@param x2 nnscaler.Tensor
---@param p? number 2
---@param eps? number 1e-6
---@param keepdim? boolean false
---@return nnscaler.Tensor
function M.pairwise_distance(x1, x2, p, eps, keepdim)
  return aten.norm(aten.sub(x1, x2) + (eps or 1e-6), p or 2, { -1 }, keepdim or false)
end

--- p-norm distances of all pairs of rows.
---@param x1 nnscaler.Tensor [..., rows1, width]
---@param x2 nnscaler.Tensor [..., rows2, width]
---@param p? number 2
---@return nnscaler.Tensor # [..., rows1, rows2]
function M.cdist(x1, x2, p) return aten.cdist(x1, x2, p or 2) end

--- The same of the rows of one matrix, each pair once.
---@param input nnscaler.Tensor [rows, width]
---@param p? number 2
---@return nnscaler.Tensor # [rows (rows - 1) / 2]
function M.pdist(input, p) return aten.pdist(input, p or 2) end

return M
