--- States whose optimizer slots rest in shards (ZeRO): sums of gradients of which each rank keeps
--- its shards, updates of shards, and the gather that makes weights whole again. The shards of a
--- set travel together, packed by rank.
local C = require 'nnscaler._C.runtime'
local groups = require 'nnscaler.runtime.groups'
local host = require 'nnscaler.tensor.host'
local shards = require 'nnscaler.runtime.shards'
local tensor = require 'nnscaler.tensor'
local train = require 'nnscaler._C.train'

local M = {}

--- This rank's shard of a tensor that lies as a weight; the tensor where it is one already, or its
--- states rest whole.
---@param self nnscaler.States
---@param name string of the weight
---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.part(self, name, x)
  local range, leaf = self.ranges[name], self.leaves[name]
  if not range or x.shape[leaf.dim + 1] ~= leaf.length then return x end
  local line = x:detach()
  local view = line:narrow(leaf.dim, range[1], range[2])
  C.release(line)
  return view
end

-- Where the shards of a set lie when they travel together: by rank of `over` a list of parts, and
-- the elements that each rank gives, as many as the one with most of them has.
local function layout_of(self, set)
  if set.layout then return set.layout end
  local layout = { chunk = 0 }
  for r = 1, #set.over do
    local parts, offset = {}, 0
    for _, name in ipairs(set.names) do
      local leaf = self.leaves[name]
      local start, length = shards.range(leaf, r)
      local shape, elements = { unpack(leaf.shape) }, 1
      shape[leaf.dim + 1] = length
      for _, size in ipairs(shape) do elements = elements * size end
      if elements > 0 then
        parts[#parts + 1] = { name = name, dim = leaf.dim, start = start, length = length,
          shape = shape, offset = offset, elements = elements }
      end
      offset = offset + elements
    end
    layout[r] = parts
    layout.chunk = math.max(layout.chunk, offset)
  end
  set.layout = layout
  return layout
end

-- Copies the parts of rank number r into a packed tensor, or back, where their tensors are there.
local function move(layout, r, packed, first, tensor_of, back)
  local parts, tensors = layout[r], {}
  for i, part in ipairs(parts) do tensors[i] = tensor_of(part.name) or false end
  train.copy_parts(packed, first, parts, tensors, back)
end

-- The gradients of a set are this rank's shards of their sum from here on.
local function take_shards(self, set, mine, at)
  local old, views, of = set.views, {}, {}
  for _, part in ipairs(layout_of(self, set)[at]) do of[part.name] = part end
  for i, name in ipairs(set.names) do
    local part, leaf = of[name], self.leaves[name]
    if part then
      local line = mine:narrow(0, part.offset, part.elements)
      views[i] = line:view(part.shape)
      C.release(line)
    else
      local shape = { unpack(leaf.shape) }
      shape[leaf.dim + 1] = 0
      views[i] = tensor.empty(shape, { dtype = leaf.gradient_dtype, device = self.device })
    end
    if self:gradient(name) then self:put(name, views[i]) end
  end
  C.release(set.flat, unpack(old))
  set.flat, set.views = mine, views
end

--- Sums the gradients of a set over ranks, of which each keeps its shards. Gradients that autograd
--- made stay whole, with this rank's shards of the sum in them, over `ranks` too.
---@param self nnscaler.States
---@param set table
---@param over integer[]
---@param ranks integer[]|nil ranks with the same shards, over which they are to be summed
function M.scatter(self, set, over, ranks)
  local layout = layout_of(self, set)
  if layout.chunk == 0 then return end
  local group = groups.group(over)
  local packed = tensor.zeros({ #over * layout.chunk },
    { dtype = self.leaves[set.names[1]].gradient_dtype, device = self.device })
  local function gradient_of(name) return self:gradient(name) end
  for r = 1, #over do move(layout, r, packed, (r - 1) * layout.chunk, gradient_of, false) end
  local mine, at = group:reduce_scatter(packed, 0), group:position() + 1
  C.release(packed)
  if self.places then
    if self.on_host.gradients then mine = host.take(mine) end
    return take_shards(self, set, mine, at)
  end
  -- Gradients as autograd made them: what other ranks keep is out of date in them.
  if ranks then groups.group(ranks):all_reduce(mine) end
  move(layout, at, mine, 0, gradient_of, true)
end

--- Updates what this rank has of a set's weights. Kernels walk a tensor by address, so a shard that
--- is strided in its weight is updated in a copy; so is what an optimizer updates on the host.
--- Views of gradients that were left to the collector would keep all of a set.
---@param self nnscaler.States
---@param set table
---@param lr number learning rate of the default group
function M.update(self, set, lr)
  local slots, weights, gradients, copies, lent = {}, {}, {}, {}, {}
  local on_host = self.on_host
  for _, name in ipairs(set.names) do
    local gradient, slot = self:gradient(name), self.slots[name]
    if gradient and slot then
      local n, part = #slots + 1, self:own(name)
      slots[n], weights[n], gradients[n] = slot, part, M.part(self, name, gradient)
      if not rawequal(gradients[n], gradient) then lent[#lent + 1] = gradients[n] end
      if on_host.slots then
        weights[n] = host.copy(part)
        if not on_host.gradients then
          gradients[n] = host.copy(gradients[n])
          lent[#lent + 1] = gradients[n]
        end
      elseif set.cut and self.leaves[name].dim > 0 then
        weights[n] = part:clone { memory_format = 'contiguous_format' }
      end
      if not rawequal(weights[n], part) then
        copies[#copies + 1] = { from = weights[n], to = part, slot = slot }
      end
      slot.data = weights[n]
    end
  end
  local given = { unpack(gradients) }
  train.align(weights, gradients)
  for i, gradient in ipairs(gradients) do
    if not rawequal(gradient, given[i]) then lent[#lent + 1] = gradient end
  end
  self.optimizer:update(slots, gradients, lr)
  tensor.no_grad(function()
    for _, copy in ipairs(copies) do
      copy.to:copy_(copy.from)
      copy.slot.data = copy.to
      C.release(copy.from)
    end
  end)
  C.release(unpack(lent))
end

--- Makes the weights of a set whole again: each rank gives the shards that it has updated.
---@param self nnscaler.States
---@param set table
---@param over integer[] the ranks that have them
function M.gather(self, set, over)
  local layout, group = layout_of(self, set), groups.group(over)
  if layout.chunk == 0 then return end
  tensor.no_grad(function()
    local at = group:position() + 1
    local mine = tensor.zeros({ layout.chunk },
      { dtype = self.leaves[set.names[1]].dtype, device = self.device })
    local function weight_of(name) return self.data[name] end
    move(layout, at, mine, 0, weight_of, false)
    local all = group:all_gather(mine, 0, #over * layout.chunk)
    for r = 1, #over do
      if r ~= at then move(layout, r, all, (r - 1) * layout.chunk, weight_of, true) end
    end
    C.release(mine, all)
  end)
end

return M
