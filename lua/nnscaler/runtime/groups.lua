--- Collectives as generated programs call them. Every call returns a new tensor; a group is the
--- list of its global ranks, ascending.
local C = require 'nnscaler._C.comm'
local base = require 'nnscaler._C.base'
local door = require 'nnscaler._C.tensor'
local release = require('nnscaler._C.runtime').release
local tensor = require 'nnscaler.tensor'

local M = {}

local groups, compared = {}, false

--- The group of these ranks; made at first use, by its members in the same order.
---@param ranks integer[]
---@return userdata group
function M.group(ranks)
  if ranks.handle and ranks.compared == compared then return ranks.handle end
  local key = table.concat(ranks, ',')
  local group = groups[key]
  if not group then
    group = C.current():group(ranks, { checked = compared })
    groups[key] = group
  end
  ranks.handle, ranks.compared = group, compared
  return group
end

--- Has ranks compare each call with those of the others, from here on. To be said by all of them: a
--- program that somebody edited is checked by nothing else.
function M.compare_calls() groups, compared = {}, true end

---Payload bytes that this rank has sent in groups made here.
---@return integer
function M.bytes_sent()
  local total = 0
  for _, key in ipairs(require('nnscaler.sorted').sorted_keys(groups)) do
    total = total + groups[key]:bytes_sent()
  end
  return total
end

---Sums over the group, or takes the greatest.
---@param x nnscaler.Tensor
---@param ranks integer[]
---@param options? { reduce: 'sum'|'max' }
---@return nnscaler.Tensor
function M.all_reduce(x, ranks, options)
  return M.group(ranks):all_reduce(x:clone { memory_format = 'contiguous_format' },
    options and options.reduce or 'sum')
end

---Joins the parts along `dim` to length `whole`.
---@param x nnscaler.Tensor
---@param dim integer
---@param whole integer
---@param ranks integer[]
---@return nnscaler.Tensor
function M.all_gather(x, dim, whole, ranks) return M.group(ranks):all_gather(x, dim, whole) end

---Keeps what backward reads in memory of the host, laid out as it is.
---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.to_host(x) return door.to_host(x) end

---Brings it back.
---@param x nnscaler.Tensor
---@param device string
---@return nnscaler.Tensor
function M.from_host(x, device) return door.from_host(x, device) end

---Begins an all_gather of the same arguments, which ends it.
---@param x nnscaler.Tensor
---@param dim integer
---@param whole integer
---@param ranks integer[]
function M.gather_ahead(x, dim, whole, ranks) M.group(ranks):all_gather_ahead(x, dim, whole) end

---Sums over the group and keeps this rank's part along `dim`.
---@param x nnscaler.Tensor
---@param dim integer
---@param ranks integer[]
---@return nnscaler.Tensor
function M.reduce_scatter(x, dim, ranks) return M.group(ranks):reduce_scatter(x, dim) end

---Sums the gradient of a weight over the ranks that hold its shards; keeps this rank's along `dim`.
---@param x nnscaler.Tensor
---@param dim integer
---@param ranks integer[]
---@param empty boolean whether the micro-batch counts for nothing: its addend is zero
---@return nnscaler.Tensor
function M.scatter_gradient(x, dim, ranks, empty)
  return M.reduce_scatter(empty and x:zeros_like() or x, dim, ranks)
end

---The same of several gradients, each along its own dimension, in one message.
---@param list nnscaler.Tensor[]
---@param dims integer[]
---@param ranks integer[]
---@param empty boolean
---@return nnscaler.Tensor[]
function M.scatter_gradients(list, dims, ranks, empty)
  return M.group(ranks):reduce_scatter_all(list, dims, empty)
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

--- All ranks, ascending.
---@return integer[]
function M.all_ranks()
  local ranks = {}
  for r = 0, C.current():size() - 1 do ranks[r + 1] = r end
  return ranks
end

local everybody

-- Messages go through the group of all ranks, which is there from the start: to make a group of two
-- at its first message would wait for the other one.
local function world()
  everybody = everybody or M.all_ranks()
  return M.group(everybody)
end

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

-- Calls `f` with a region of a tensor. Views left to the collector would keep the whole tensor.
local function within(x, box, f)
  local views, part = {}, x
  for d, range in ipairs(box) do
    part = part:narrow(d - 1, range[1], range[2])
    views[d] = part
  end
  f(part)
  release(unpack(views))
end

-- Tag of what moves within a stage; messages between stages have those above it.
local inside = 0

local function give(x, moves, tag, empty)
  local rank = C.current():rank()
  if empty then x = x:zeros_like() end
  for peer, box in each_move(moves, x:dim()) do
    within(x, box, function(part)
      if peer == rank then
        own[tag] = own[tag] or {}
        table.insert(own[tag], part:clone())
      else
        world():send(part, peer, tag)
      end
    end)
  end
end

local function take(x, moves, tag)
  local rank = C.current():rank()
  for peer, box in each_move(moves, x:dim()) do
    within(x, box, function(part)
      if peer == rank then
        local mine = table.remove(own[tag], 1)
        part:copy_(mine)
        release(mine)
      else
        world():recv(part, peer, tag)
      end
    end)
  end
  return x
end

---Sends regions of a tensor to other ranks; does not wait for them.
---@param x nnscaler.Tensor
---@param moves integer[] for each region: rank, then start and length per dimension
---@param tag integer of the value
---@param first integer first tag of the micro-batch
---@param empty? boolean x is a gradient of a micro-batch that counts for nothing: zeros are sent
function M.send(x, moves, tag, first, empty) give(x, moves, inside + 1 + first + tag, empty) end

---Puts a tensor together from regions that other ranks send.
---@param shape integer[]
---@param moves integer[] for each region: rank, then start and length per dimension
---@param tag integer of the value
---@param first integer first tag of the micro-batch
---@param options { dtype: string }
---@return nnscaler.Tensor
function M.receive(shape, moves, tag, first, options)
  return take(tensor.empty(shape, { dtype = options.dtype }), moves, inside + 1 + first + tag)
end

---Exchanges regions within a stage: what a layout has and another wants.
---@param x nnscaler.Tensor
---@param shape integer[] of the result
---@param sends integer[] as in send
---@param receives integer[] as in receive
---@param empty? boolean as in send
---@return nnscaler.Tensor
function M.move(x, shape, sends, receives, empty)
  give(x, sends, inside, empty)
  return take(tensor.empty(shape, { dtype = x.dtype }), receives, inside)
end

-- Rows for or from each rank, one behind the other, as moves.
local function moves_of_rows(counts, ranks, shape)
  local moves, start = {}, 0
  for i, n in ipairs(counts:tolist()) do
    if n > 0 then
      for _, number in ipairs { ranks[i], start, n } do moves[#moves + 1] = number end
      for d = 2, #shape do
        moves[#moves + 1], moves[#moves + 2] = 0, shape[d]
      end
    end
    start = start + n
  end
  return moves
end

---Sends rows to the ranks of a group and puts together those that they send, in the order of the
---ranks; rows behind them are zero.
---@param x nnscaler.Tensor [rows, …]
---@param sends nnscaler.Tensor int64 [ranks]: how many rows go to each, from the first on
---@param receives nnscaler.Tensor int64 [ranks]: how many come from each
---@param rows integer of the result
---@param ranks integer[]
---@return nnscaler.Tensor
function M.exchange_rows(x, sends, receives, rows, ranks)
  local shape = { unpack(x.shape) }
  give(x, moves_of_rows(sends, ranks, shape), inside)
  shape[1] = rows
  return take(tensor.zeros(shape, { dtype = x.dtype }), moves_of_rows(receives, ranks, shape),
    inside)
end

-- A whole tensor for, or from, a rank.
local function whole(rank, shape)
  local move = { rank }
  for _, size in ipairs(shape) do
    move[#move + 1], move[#move + 2] = 0, size
  end
  return move
end

-- Number of this rank in a group, from 0.
local function position_in(ranks)
  local rank = C.current():rank()
  for i, other in ipairs(ranks) do
    if other == rank then return i - 1 end
  end
end

---Sends a tensor to the next rank of the group, the first behind the last, and gets that of the
---rank before.
---@param x nnscaler.Tensor
---@param dim integer along which sizes differ
---@param length integer of the result along it
---@param ranks integer[]
---@return nnscaler.Tensor
function M.rotate(x, dim, length, ranks)
  local at, n, shape = position_in(ranks), #ranks, { unpack(x.shape) }
  give(x, whole(ranks[(at + 1) % n + 1], shape), inside)
  shape[dim + 1] = length
  return take(tensor.empty(shape, { dtype = x.dtype }), whole(ranks[(at - 1) % n + 1], shape),
    inside)
end

---Exchanges halves along `dim`. Of 2n halves, rank number r of n has 2r and 2r + 1, and gets r and
---2n - 1 - r; or, with `back`, the other way round.
---@param x nnscaler.Tensor of even length
---@param dim integer
---@param ranks integer[]
---@param back? boolean
---@return nnscaler.Tensor
function M.zigzag(x, dim, ranks, back)
  local r, n, shape = position_in(ranks), #ranks, x.shape
  local half = shape[dim + 1] / 2
  local in_order = { 2 * r, 2 * r + 1 }
  local folded = { r, 2 * n - 1 - r }
  local function owner_in_order(h) return math.floor(h / 2) end
  local function owner_folded(h) return h < n and h or 2 * n - 1 - h end
  -- Where the halves lie here, each for or from the rank that `owner` says.
  local function moves(halves, owner)
    local list = {}
    for i, h in ipairs(halves) do
      list[#list + 1] = ranks[owner(h) + 1]
      for d, size in ipairs(shape) do
        local cut = d == dim + 1
        list[#list + 1], list[#list + 2] = cut and (i - 1) * half or 0, cut and half or size
      end
    end
    return list
  end
  if back then
    give(x, moves(folded, owner_in_order), inside)
  else
    give(x, moves(in_order, owner_folded), inside)
  end
  local out = tensor.empty(shape, { dtype = x.dtype })
  if back then return take(out, moves(in_order, owner_folded), inside) end
  return take(out, moves(folded, owner_in_order), inside)
end

local spent = 0

for _, name in ipairs { 'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'send',
  'receive', 'move' } do
  local f = M[name]
  M[name] = function(...)
    local start = base.clock()
    local result = f(...)
    spent = spent + base.clock() - start
    return result
  end
end

---Seconds that this rank has spent in these calls, those in which it waited for others among them.
---@return number
function M.seconds() return spent end

---Returns when the messages of this rank were handed over.
function M.flush()
  if everybody then world():flush() end
end

return M
