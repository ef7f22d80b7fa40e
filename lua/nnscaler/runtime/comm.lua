--- Collectives as generated programs call them. Every call returns a new tensor; `ranks` are the
--- global ranks of the group, ascending.
local C = require 'nnscaler._C.comm'

local M = {}

local groups = {}

--- The group of these ranks; made at first use, by its members in the same order.
---@param ranks integer[]
---@return userdata group
function M.group(ranks)
  local key = table.concat(ranks, ',')
  local group = groups[key]
  if not group then
    group = C.current():group(ranks)
    groups[key] = group
  end
  return group
end

---Sums over the group.
---@param x nnscaler.Tensor
---@param ranks integer[]
---@return nnscaler.Tensor
function M.all_reduce(x, ranks) return M.group(ranks):all_reduce(x:clone()) end

---Joins the parts along `dim` to length `whole`.
---@param x nnscaler.Tensor
---@param dim integer
---@param whole integer
---@param ranks integer[]
---@return nnscaler.Tensor
function M.all_gather(x, dim, whole, ranks) return M.group(ranks):all_gather(x, dim, whole) end

---Sums over the group and keeps this rank's part along `dim`.
---@param x nnscaler.Tensor
---@param dim integer
---@param ranks integer[]
---@return nnscaler.Tensor
function M.reduce_scatter(x, dim, ranks) return M.group(ranks):reduce_scatter(x, dim) end

---Cuts along `dim` and joins along `from` to length `whole`.
---@param x nnscaler.Tensor
---@param dim integer
---@param from integer
---@param whole integer
---@param ranks integer[]
---@return nnscaler.Tensor
function M.all_to_all(x, dim, from, whole, ranks)
  return M.group(ranks):all_to_all(x, dim, from, whole)
end

---Keeps the value on the first rank of the group; zeros on the others.
---@param x nnscaler.Tensor
---@param ranks integer[]
---@return nnscaler.Tensor
function M.value_chunk(x, ranks)
  return M.group(ranks):position() == 0 and x:clone() or x:zeros_like()
end

return M
