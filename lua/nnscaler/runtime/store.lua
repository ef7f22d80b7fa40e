--- The sharded store of a model: of each parameter and buffer this rank's slice of the whole, for
--- the weight and for what lies as it does (slots of an optimizer). Trainer, library and
--- checkpoints read and write whole tensors through it. What says "a collective" is called by all
--- ranks, in the same order.
local base = require 'nnscaler._C.base'
local groups = require 'nnscaler.runtime.groups'
local shards = require 'nnscaler.runtime.shards'
local sorted = require 'nnscaler.sorted'
local tensor = require 'nnscaler.tensor'

local M = {}

---@class nnscaler.Slice
---@field start integer[] where it begins, per dimension
---@field shape integer[] of the slice
---@field whole integer[] shape of the whole

---@class nnscaler.StoreLeaf
---@field name string
---@field kind 'parameter'|'buffer'
---@field slice nnscaler.Slice|nil nil: other ranks hold it
---@field rest nnscaler.Slice|nil of the optimizer's slots, which may rest in smaller parts than the
---  weight; nil: other ranks keep them
---@field data nnscaler.Tensor|nil this rank's slice of the weight

---@class nnscaler.Store
---@field leaves nnscaler.StoreLeaf[] in the order of the model
---@field by_name table<string, nnscaler.StoreLeaf>
local Store = {}
Store.__index = Store

--- The slice that a leaf of a program or a part of a parameter is; all of it where it has no start.
---@param leaf { shape: integer[], start?: integer[], whole?: integer[] }
---@return nnscaler.Slice
function M.slice_of(leaf)
  local start, shape = leaf.start, leaf.shape
  if not start then
    start = {}
    for d = 1, #shape do start[d] = 0 end
  end
  return { start = start, shape = shape, whole = leaf.whole or shape }
end

--- The region of a whole tensor that a slice is, as a view.
---@param whole nnscaler.Tensor
---@param slice nnscaler.Slice
---@return nnscaler.Tensor
function M.region(whole, slice)
  for d, start in ipairs(slice.start) do whole = whole:narrow(d - 1, start, slice.shape[d]) end
  return whole
end

--- A text that is equal for equal slices.
---@param slice nnscaler.Slice
---@return string
function M.key(slice)
  return ('[%s][%s]'):format(table.concat(slice.start, ', '), table.concat(slice.shape, ', '))
end

--- Makes a store.
---@param leaves nnscaler.StoreLeaf[]
---@param ranks integer[] all ranks
---@param rank integer this one
---@return nnscaler.Store
function M.new(leaves, ranks, rank)
  local self = setmetatable({ leaves = leaves, ranks = ranks, rank = rank, by_name = {} }, Store)
  for _, leaf in ipairs(leaves) do self.by_name[leaf.name] = leaf end
  return self
end

--- The store of an engine's model.
---@param model nnscaler.nn.Module
---@param engine nnscaler.Engine
---@param sharing nnscaler.Sharing|nil of several ranks
---@return nnscaler.Store
function M.of_engine(model, engine, sharing)
  local data, leaves, rank = {}, {}, sharing and sharing.rank or 0
  for _, list in ipairs { engine.parameters, engine.buffers } do
    for _, leaf in ipairs(list) do data[leaf.name] = leaf.data end
  end
  local function add(name, kind)
    local own = data[name]
    local part = sharing and sharing.parts[name]
    local slice = own and M.slice_of(part or own)
    leaves[#leaves + 1] = { name = name, kind = kind, data = own, slice = slice,
      rest = part and shards.slice(part, rank) or not part and slice or nil }
  end
  for _, entry in ipairs(model:named_parameters()) do add(entry.name, 'parameter') end
  for _, entry in ipairs(model:named_buffers()) do
    if entry.persistent ~= false then add(entry.name, 'buffer') end
  end
  return M.new(leaves, sharing and sharing.everybody or { 0 }, rank)
end

local function is_whole(slice)
  return table.concat(slice.shape, ' ') == table.concat(slice.whole, ' ')
end

-- A text of each rank, on all of them.
local function exchange(self, text)
  if #self.ranks == 1 then return { text } end
  return groups.group(self.ranks):exchange(text)
end

-- What each rank says of its list of { key, name, data }: by rank a list of { key, slice, dtype }.
local function told(self, list)
  local mine = {}
  for i, entry in ipairs(list) do
    local slice = entry.slice or self.by_name[entry.name].slice
    if is_whole(slice) then slice = M.slice_of { shape = entry.data.shape } end
    mine[i] = { key = entry.key, start = slice.start, shape = slice.shape, whole = slice.whole,
      dtype = entry.data.dtype }
  end
  local all = {}
  for r, text in ipairs(exchange(self, base.json_encode(mine))) do
    all[r] = base.json_decode(text)
    for _, entry in ipairs(all[r]) do -- an empty list has no kind in JSON
      for _, field in ipairs { 'start', 'shape', 'whole' } do entry[field] = entry[field] or {} end
    end
  end
  return all
end

-- How many ranks hold all of each key.
local function whole_on(all)
  local count = {}
  for _, entries in ipairs(all) do
    for _, entry in ipairs(entries) do
      if is_whole(entry) then
        count[entry.key] = (count[entry.key] or 0) + 1
      end
    end
  end
  return count
end

--- Whole tensors from the slices that ranks hold. A collective. What every rank holds whole is not
--- sent, and is the tensor that the rank gave.
---@param list { key: string, name: string, data: nnscaler.Tensor, slice?: nnscaler.Slice }[] of
---  this rank; `name` says how it lies, unless `slice` does, `key` tells it from others
---@return table<string, nnscaler.Tensor> wholes by key, on every rank
function Store:gather(list)
  local wholes, own, seen, all = {}, {}, {}, told(self, list)
  for _, entry in ipairs(list) do own[entry.key] = entry.data end
  local everywhere = whole_on(all)
  for r, entries in ipairs(all) do
    for _, entry in ipairs(entries) do
      local key = entry.key .. M.key(entry)
      if everywhere[entry.key] == #self.ranks then
        wholes[entry.key] = own[entry.key]
      elseif not seen[key] then
        seen[key] = true
        wholes[entry.key] = wholes[entry.key] or tensor.empty(entry.whole, { dtype = entry.dtype })
        local place = M.region(wholes[entry.key], entry)
        local root = self.ranks[r]
        local part = root == self.rank and own[entry.key]:detach():contiguous()
          or place:contiguous()
        groups.group(self.ranks):broadcast(part, r - 1)
        place:copy_(part)
      end
    end
  end
  return wholes
end

--- Which of its entries this rank keeps for all, so that ranks together keep every slice once, and
--- each about as many elements. A collective.
---@param list table[] as for `gather`
---@return table<string, boolean> by key
function Store:keepers(list)
  local all = told(self, list)
  local order, holders, whole = {}, {}, whole_on(all)
  for r, entries in ipairs(all) do
    for _, entry in ipairs(entries) do
      local key = entry.key .. M.key(entry)
      if not whole[entry.key] or is_whole(entry) then
        if not holders[key] then
          order[#order + 1] = { key = key, entry = entry }
          holders[key] = {}
        end
        table.insert(holders[key], r)
      end
    end
  end
  local load, keeps = {}, {}
  for r = 1, #all do load[r] = 0 end
  for _, item in ipairs(order) do
    local keeper, elements = holders[item.key][1], 1
    for _, r in ipairs(holders[item.key]) do
      if load[r] < load[keeper] then keeper = r end
    end
    for _, size in ipairs(item.entry.shape) do elements = elements * size end
    load[keeper] = load[keeper] + elements
    if self.ranks[keeper] == self.rank then keeps[item.entry.key] = true end
  end
  return keeps
end

--- The whole weights in the order of the model, on every rank. A collective.
---@return { name: string, data: nnscaler.Tensor, kind: string }[]
function Store:weights()
  local mine, out = {}, {}
  for _, leaf in ipairs(self.leaves) do
    if leaf.data then mine[#mine + 1] = { key = leaf.name, name = leaf.name, data = leaf.data } end
  end
  local wholes = self:gather(mine)
  for i, leaf in ipairs(self.leaves) do
    out[i] = { name = leaf.name, data = wholes[leaf.name], kind = leaf.kind }
  end
  return out
end

--- The updates of every parameter, on every rank. A collective.
---@param counts table<string, integer> of this rank
---@return table<string, integer>
function Store:counts(counts)
  local all = {}
  for _, text in ipairs(exchange(self, base.json_encode { counts = counts })) do
    for name, count in sorted.sorted_pairs(base.json_decode(text).counts or {}) do
      all[name] = all[name] or count
    end
  end
  return all
end

--- The whole state of an optimizer, on every rank. A collective.
---@param state { counts: table<string, integer>, tensors: table[] } of this rank
---@return { counts: table<string, integer>, tensors: table[] }
function Store:optimizer(state)
  local mine, slots, tensors = {}, {}, {}
  for i, entry in ipairs(state.tensors) do
    mine[i] = { key = entry.parameter .. '\n' .. entry.name, name = entry.parameter,
      data = entry.data, slice = self.by_name[entry.parameter].rest }
  end
  local counts = self:counts(state.counts)
  local wholes = self:gather(mine)
  for _, key in ipairs(sorted.sorted_keys(wholes)) do
    local parameter, name = key:match '^(.*)\n(.*)$'
    slots[parameter] = slots[parameter] or {}
    table.insert(slots[parameter], { parameter = parameter, name = name, data = wholes[key] })
  end
  for _, leaf in ipairs(self.leaves) do
    for _, entry in ipairs(slots[leaf.name] or {}) do tensors[#tensors + 1] = entry end
  end
  return { counts = counts, tensors = tensors }
end

--- This rank's slice of a whole tensor.
---@param name string
---@param whole nnscaler.Tensor
---@param slice? nnscaler.Slice that of the weight unless told
---@return nnscaler.Tensor
function Store:own(name, whole, slice)
  slice = slice or self.by_name[name].slice
  if is_whole(slice) then return whole end
  return M.region(whole, slice):contiguous()
end

--- This rank's slices of a whole optimizer state.
---@param tensors { parameter: string, name: string, data: nnscaler.Tensor }[]
---@return table[]
function Store:own_optimizer(tensors)
  local list = {}
  for _, entry in ipairs(tensors) do
    local leaf = self.by_name[entry.parameter]
    if leaf and leaf.rest then
      list[#list + 1] = { parameter = entry.parameter, name = entry.name,
        data = self:own(entry.parameter, entry.data, leaf.rest) }
    end
  end
  return list
end

return M
