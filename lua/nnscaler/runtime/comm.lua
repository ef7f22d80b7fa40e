--- Collectives as generated programs call them. Every call returns a new tensor; a group is the
--- list of its global ranks, ascending.
local C = require 'nnscaler._C.comm'
local tensor = require 'nnscaler.tensor'

local M = {}

local groups = {}

--- The group of these ranks; made at first use, by its members in the same order.
---@param ranks integer[]
---@return userdata group
function M.group(ranks)
  if ranks.handle then return ranks.handle end
  local key = table.concat(ranks, ',')
  local group = groups[key]
  if not group then
    group = C.current():group(ranks, { checked = false })
    groups[key] = group
  end
  ranks.handle = group
  return group
end

---Payload bytes that this rank has sent so far.
---@return integer
function M.bytes_sent()
  local total = 0
  for _, group in require('nnscaler.sorted').sorted_pairs(groups) do
    total = total + group:bytes_sent()
  end
  return total
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

-- Whether what backward makes counts for nothing.
local muted = false

---Has gradients of weights in shards count as zeros from now on: other ranks may wait for them even
---when this one has none.
---@param on boolean
function M.mute(on) muted = on end

---Sums the gradient of a weight over the ranks that hold its shards; keeps this rank's along `dim`.
---@param x nnscaler.Tensor
---@param dim integer
---@param ranks integer[]
---@return nnscaler.Tensor
function M.scatter_gradient(x, dim, ranks)
  return M.group(ranks):reduce_scatter(muted and x:zeros_like() or x, dim)
end

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

-- Messages to this rank itself, by tag.
local own = {}

-- Walks a list of moves: other rank, then start and length per dimension.
local function each_move(moves, dims)
  local i = 1
  return function()
    local peer = moves[i]
    if not peer then return nil end
    local box = {}
    for d = 0, dims - 1 do box[d + 1] = { moves[i + 1 + 2 * d], moves[i + 2 + 2 * d] } end
    i = i + 1 + 2 * dims
    return peer, box
  end
end

local function pair(peer)
  local rank = C.current():rank()
  local group = M.group(rank < peer and { rank, peer } or { peer, rank })
  return group, rank < peer and 1 or 0
end

---Sends regions of a tensor to other ranks; does not wait for them.
---@param x nnscaler.Tensor
---@param moves integer[] for each region: rank, then start and length per dimension
---@param tag integer of the value
function M.send(x, moves, tag)
  local rank = C.current():rank()
  for peer, box in each_move(moves, x:dim()) do
    local part = x
    for d, range in ipairs(box) do part = part:narrow(d - 1, range[1], range[2]) end
    if peer == rank then
      own[tag] = own[tag] or {}
      table.insert(own[tag], part:clone())
    else
      local group, position = pair(peer)
      group:send(part, position)
    end
  end
end

---Puts a tensor together from regions that other ranks send.
---@param shape integer[]
---@param moves integer[] for each region: rank, then start and length per dimension
---@param tag integer of the value
---@param options { dtype: string }
---@return nnscaler.Tensor
function M.receive(shape, moves, tag, options)
  local rank = C.current():rank()
  local x = tensor.empty(shape, { dtype = options.dtype })
  for peer, box in each_move(moves, #shape) do
    local part = x
    for d, range in ipairs(box) do part = part:narrow(d - 1, range[1], range[2]) end
    if peer == rank then
      part:copy_(table.remove(own[tag], 1))
    else
      local group, position = pair(peer)
      group:recv(part, position)
    end
  end
  return x
end

return M
