--- How states of a weight rest in shards (ZeRO), as a program tells it of its parameters: what a
--- rank has of the piece that is used on it, and of the whole weight.
local M = {}

---@class nnscaler.Shards beside what a leaf of a program has
---@field zero integer|nil which states rest in shards: 0 none, 1 those of the optimizer, 2
---  gradients too, 3 weights too
---@field over integer[] ranks among which they are cut
---@field dim integer along which the piece is cut
---@field length integer of the piece along it
---@field owner integer|nil the one of `over`, from 0, that has all of it
---@field scatter boolean whether the step scatters the gradient
---@field gradient integer[]|nil shape of the gradient, where that alone rests in a shard

--- Whether the optimizer updates a shard of a weight that rests whole.
---@param leaf nnscaler.Shards
---@return boolean
function M.cuts(leaf) return leaf.zero == 1 or leaf.zero == 2 end

--- What a rank has along the dimension.
---@param leaf nnscaler.Shards
---@param i integer number of the rank in `over`, from 1
---@return integer start, integer length
function M.range(leaf, i)
  if leaf.owner then return 0, i == leaf.owner + 1 and leaf.length or 0 end
  local base, rest = math.floor(leaf.length / #leaf.over), leaf.length % #leaf.over
  return (i - 1) * base + math.min(i - 1, rest), base + (i <= rest and 1 or 0)
end

--- Number of a rank among those that share a weight, from 1.
---@param leaf nnscaler.Shards
---@param rank integer
---@return integer
function M.position(leaf, rank)
  for i, other in ipairs(leaf.over) do
    if other == rank then return i end
  end
end

--- The slice of the whole weight that the optimizer of a rank updates; nil: nothing.
---@param leaf nnscaler.Leaf
---@param rank integer
---@return nnscaler.Slice|nil
function M.slice(leaf, rank)
  local slice = { start = {}, shape = { unpack(leaf.shape) }, whole = leaf.whole or leaf.shape }
  for d = 1, #leaf.shape do slice.start[d] = leaf.start and leaf.start[d] or 0 end
  if not M.cuts(leaf) then return slice end
  local start, length = M.range(leaf, M.position(leaf, rank))
  if length == 0 then return nil end
  slice.start[leaf.dim + 1] = slice.start[leaf.dim + 1] + start
  slice.shape[leaf.dim + 1] = length
  return slice
end

return M
