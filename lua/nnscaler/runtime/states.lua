--- States of this rank's parameters as the step of an optimizer works on them: weights, gradients
--- by sets, slots of the optimizer. Gradients that ranks sum lie in one flat tensor a set, made at
--- the first of them: products are written into it, addends are added to it, and the sum of a set
--- is one all-reduce in place. A sum that backward marks starts there, in the order of sets, so
--- that all ranks agree; back ends that work asynchronously overlap it with what is left of it.
--- Where the slots of the optimizer rest in shards (runtime/shards.lua), each rank updates its own
--- and a gather makes the weights of the set whole again.
local C = require 'nnscaler._C.runtime'
local base = require 'nnscaler._C.base'
local groups = require 'nnscaler.runtime.groups'
local sharded = require 'nnscaler.runtime.sharded'
local shards = require 'nnscaler.runtime.shards'
local tensor = require 'nnscaler.tensor'
local train = require 'nnscaler._C.train'

local M = {}

---@class nnscaler.Sum of the gradient of one parameter
---@field name string of the parameter
---@field ranks integer[]

---@alias nnscaler.ReducerHook fun(sum: nnscaler.Sum, gradient: nnscaler.Tensor)

---@class nnscaler.Leaf of the program: a parameter
---@field name string
---@field shape integer[]
---@field dtype string
---@field gradient_dtype string|nil in which its gradient is summed; nil: the weight's
---@field holders integer|nil ranks that hold the same part of the gradient
---@field start integer[]|nil where the part begins
---@field whole integer[]|nil shape of the whole weight
---@field zero integer|nil as in nnscaler.Shards, with what else that has

---@class nnscaler.States
---@field sets table[] { ranks, names, over, scatter, joint, cut, flat, views, handle, asked,
---  moving }
---@field ranges table<string, integer[]> of weights that this rank updates a shard of: start and
---  length
---@field on_host { slots: boolean, gradients: boolean } what rests in memory of the host
---@field optimizer nnscaler.Optimizer|nil that updates the weights
---@field copied integer elements that sums have copied: of gradients that were put elsewhere
local States = {}
States.__index = States
M.States = States

-- Whether gradients of a set lie in a flat tensor: those that ranks sum, and those on the host.
local function has_flat(self, set) return set.joint or self.on_host.gradients end

-- Gives the tables of gradients the homes of what lies in flat tensors.
local function add_homes(self, places)
  local homes = {} -- table → key → { set, place in it }
  for _, set in ipairs(self.sets) do
    for i, name in ipairs(has_flat(self, set) and set.names or {}) do
      local place = places[name]
      local of = homes[place.table]
      if not of then
        of = {}
        homes[place.table] = of
        setmetatable(place.table, { apart = self.on_host.gradients, home = function(_, key)
          local home = of[key]
          return home and self:views(home.set)[home.place]
        end })
      end
      of[place.key] = { set = set, place = i }
    end
  end
end

-- Whether some rank has any gradient of a set.
local function any_of(self, set)
  for _, name in ipairs(set.names) do
    if self.some[name] then return true end
  end
  return false
end

--- Makes the states of a program's parameters.
---@param options { sets: table[], leaves: nnscaler.Leaf[], data: table<string, nnscaler.Tensor>,
---  places?: table, some?: table<string, boolean>, device?: string, hooks?: table, rank?: integer,
---  on_host?: { slots: boolean, gradients: boolean } }
---  sets as the program tells them; data: weights by name; places of gradients by name, else
---  gradients are those of autograd (`weight.grad`); some: names of parameters that some rank has a
---  gradient of; hooks: { before = ReducerHook[], after = ReducerHook[] }; rank: this one
---@return nnscaler.States
function M.new(options)
  local self = setmetatable({ sets = {}, leaves = {}, data = options.data,
    places = options.places, some = options.some or {}, device = options.device, started = 0,
    absent = {}, copied = 0, ranges = {},
    on_host = options.on_host or { slots = false, gradients = false },
    hooks = options.hooks or { before = {}, after = {} }, slots = {},
    times = { steps = 0, moving = 0, under_way = 0, waited = 0 } }, States)
  for _, leaf in ipairs(options.leaves) do
    self.leaves[leaf.name] = leaf
    leaf.gradient_dtype = leaf.gradient_dtype or leaf.dtype
    if shards.cuts(leaf) then
      self.ranges[leaf.name] = { shards.range(leaf, shards.position(leaf, options.rank)) }
    end
  end
  for k, set in ipairs(options.sets) do
    self.sets[k] = { ranks = set.ranks, names = set.names, one = true, over = set.over,
      scatter = set.scatter or false,
      joint = set.ranks ~= nil or set.scatter == true, -- whether ranks sum it together
      cut = shards.cuts(set) }
    local first
    for _, name in ipairs(set.names) do
      local holders = self.leaves[name].holders or 1
      first = first or holders
      self.sets[k].one = self.sets[k].one and holders == first
    end
    self.sets[k].holders = first
    self.sets[k].late = self.sets[k].joint and not any_of(self, set)
  end
  if self.places then add_homes(self, self.places) end
  return self
end

--- What may be summed, parameter by parameter, in the order that all ranks keep.
---@return nnscaler.Sum[]
function States:sums()
  local list = {}
  for _, set in ipairs(self.sets) do
    for _, name in ipairs(set.joint and set.names or {}) do
      list[#list + 1] = { name = name, ranks = set.ranks or set.over }
    end
  end
  return list
end

--- Gradient of a parameter, or nil.
---@param name string
---@return nnscaler.Tensor|nil
function States:gradient(name)
  if not self.places then return self.data[name].grad end
  local place = self.places[name]
  return place.table[place.key]
end

--- Puts a gradient in place of what a parameter has.
---@param name string
---@param gradient nnscaler.Tensor|nil
function States:put(name, gradient)
  if not self.places then
    self.data[name].grad = gradient
    return
  end
  local place = self.places[name]
  place.table[place.key] = gradient
end

-- The flat tensor of a set, as the gradients in it.
function States:views(set)
  if not set.views then
    local shapes = {}
    for i, name in ipairs(set.names) do
      shapes[i] = self.leaves[name].gradient or self.leaves[name].shape
    end
    set.flat, set.views = C.flat(self.leaves[set.names[1]].gradient_dtype,
      self.on_host.gradients and 'host' or self.device or 'cpu', shapes)
  end
  return set.views
end

--- Forgets gradients, and that they were summed.
function States:reset()
  for name in next, self.leaves do
    if self:gradient(name) then
      if self.places then C.release(self:gradient(name)) end
      self:put(name, nil)
    end
  end
  for _, set in ipairs(self.sets) do
    -- Views that the collector has not met yet would keep the whole of it.
    if set.views then C.release(set.flat, unpack(set.views)) end
    set.flat, set.views = nil, nil
  end
  self:begin()
end

--- Gradients are addends of this rank from now on.
function States:begin()
  for _, set in ipairs(self.sets) do
    set.asked, set.told, set.handle, set.moving = nil, nil, nil, nil
  end
  self.started, self.absent = 0, {}
end

--- Whether a parameter has a gradient that backward has made.
---@param name string
---@return boolean
function States:has(name)
  return self.leaves[name] ~= nil and not self.absent[name] and self:gradient(name) ~= nil
end

-- Notes that the sum of a set is there.
function States:arrive(set)
  local times = self.times
  set.moving = false
  times.moving = times.moving - 1
  if times.moving == 0 then times.under_way = times.under_way + base.clock() - times.since end
end

-- Drives on what is under way: some back ends move only when they are asked.
function States:poll()
  for _, set in ipairs(self.sets) do
    if set.moving and set.handle:done() then self:arrive(set) end
  end
end

-- Makes the gradients of a set whole: a rank without one adds zeros, and what was put elsewhere is
-- copied. Those that no rank has stay away, zeros in their place of the flat tensor.
function States:fill(set)
  for i, name in ipairs(set.names) do
    local gradient = self:gradient(name)
    if gradient and self.places and not rawequal(gradient, self:views(set)[i]) then
      self:views(set)[i]:copy_(gradient)
      self.copied = self.copied + gradient:numel()
      self:put(name, self:views(set)[i])
    elseif not gradient then
      local leaf = self.leaves[name]
      local zeros
      if self.places then
        zeros = self:views(set)[i]
        zeros:zero_()
      elseif self.some[name] then
        zeros = tensor.zeros(leaf.gradient or leaf.shape,
          { dtype = leaf.dtype, device = self.device })
      end
      if self.some[name] then
        self:put(name, zeros)
        self.absent[name] = true
      end
    end
  end
end

local function call(self, hooks, set)
  for _, name in ipairs(#hooks > 0 and set.names or {}) do
    if self.some[name] then
      for _, hook in ipairs(hooks) do
        hook({ name = name, ranks = set.ranks or set.over }, self:gradient(name))
      end
    end
  end
end

-- A copy on the device of what lies on the host.
local function to_device(self, x)
  return tensor.empty(x.shape, { dtype = x.dtype, device = self.device }):copy_(x)
end

-- Takes the sum that was made on the device back to the host.
local function take_sum(self, set)
  if self.on_host.gradients then
    tensor.no_grad(function() set.flat:copy_(set.sum) end)
    C.release(set.sum)
  end
  set.sum = nil
end

-- Starts the sum of a set, unless it is under way.
function States:ask(set, over, ranks)
  if set.asked or not any_of(self, set) then return end
  set.asked = ranks or over
  tensor.no_grad(function()
    self:fill(set)
    call(self, self.hooks.before, set)
    if set.scatter then sharded.scatter(self, set, over, ranks) end
    if not ranks or (set.scatter and not self.places) then return end
    local group = groups.group(ranks)
    if not self.places then -- gradients as autograd made them
      for _, name in ipairs(set.names) do
        local gradient = self:gradient(name)
        if gradient then group:all_reduce(gradient) end
      end
      return
    end
    local times, began = self.times, base.clock()
    if times.moving == 0 then times.since = began end
    times.moving, set.moving = times.moving + 1, true
    set.sum = set.flat
    if self.on_host.gradients then set.sum = to_device(self, set.flat) end
    set.handle = group:all_reduce_async(set.sum)
    times.waited = times.waited + base.clock() - began
  end)
end

--- Starts the sums of the sets up to number k, as backward does where it has made their last
--- addends; nothing where `k` is nil.
---@param k integer|nil
function States:start(k)
  if not k then return end
  self:poll()
  for i = self.started + 1, k do
    local set = self.sets[i]
    if set.joint then self:ask(set, set.over, set.ranks) end
  end
  self.started = math.max(self.started, k)
end

--- Sums the gradients of a set over ranks, of which each keeps its shards; with what sums those
--- over other ranks.
---@param k integer
---@param over integer[]
function States:scatter(k, over) self:ask(self.sets[k], over, self.sets[k].ranks) end

--- Starts the sum of a set over ranks, in place; `wait` ends it.
---@param k integer
---@param ranks integer[]
function States:sum(k, ranks) self:ask(self.sets[k], self.sets[k].over, ranks) end

--- Waits for all sums.
function States:wait()
  local times, any = self.times, false
  for _, set in ipairs(self.sets) do
    if set.asked then
      if set.handle then
        any = true
        local asked = base.clock()
        set.handle:wait()
        times.waited = times.waited + base.clock() - asked
        if set.moving then self:arrive(set) end
        take_sum(self, set)
        set.handle = nil
      end
      if not set.told then
        set.told = true
        tensor.no_grad(call, self, self.hooks.after, set)
      end
    end
  end
  if any then times.steps = times.steps + 1 end
end

-- Gives this rank the gradient number i of a set that some rank has made one of.
function States:complete(set, i)
  local name = set.names[i]
  if not self:gradient(name) then
    local leaf = self.leaves[name]
    local gradient = has_flat(self, set) and self:views(set)[i]
      or tensor.empty(leaf.gradient or leaf.shape,
        { dtype = leaf.gradient_dtype, device = self.device })
    if set.late or not set.joint then gradient:zero_() end -- else it is in the sum of the set
    self:put(name, gradient)
  end
  if not set.late then return end
  local gradient, sum = self:gradient(name), self:gradient(name)
  if self.on_host.gradients then sum = to_device(self, gradient) end
  for _, ranks in ipairs { set.scatter and set.over or {}, set.ranks or {} } do
    if #ranks > 0 then groups.group(ranks):all_reduce(sum) end
  end
  if not rawequal(gradient, sum) then
    gradient:copy_(sum)
    C.release(sum)
  end
  if set.scatter and self.places then
    local part = sharded.part(self, name, self:gradient(name))
    self:put(name, part:clone { memory_format = 'contiguous_format' })
  end
end

--- After the sums of a step in which other graphs than the first one ran: drops gradients that no
--- rank has made, and sums those of which the first graph has none.
---@param any table<string, boolean> by name: whether some rank has made a gradient
function States:settle(any)
  for _, set in ipairs(self.sets) do
    for i, name in ipairs(set.names) do
      if not any[name] then
        self:put(name, nil)
      else
        tensor.no_grad(self.complete, self, set, i)
      end
    end
  end
end

--- How long sums were under way, and the share of that in which this rank did not wait for them;
--- nil where there are none.
---@return { seconds: number, hidden: number }|nil seconds a step; hidden: from 0 to 1
function States:overlapped()
  local times = self.times
  if times.steps == 0 or times.under_way == 0 then return nil end
  return { seconds = times.under_way / times.steps,
    hidden = math.max(0, 1 - times.waited / times.under_way) }
end

-- Gradients of a set that are there, and their parameters; of `holders` ranks each, where told.
-- With views that were made for it: whoever asks releases them, else they keep all of a set.
local function list_of(self, k, holders)
  local set, names, gradients, made = self.sets[k], {}, {}, {}
  for _, name in ipairs(set.names) do
    local gradient = self:gradient(name)
    if gradient and (not holders or (self.leaves[name].holders or 1) == holders) then
      local n = #names + 1
      names[n], gradients[n] = name, set.scatter and sharded.part(self, name, gradient) or gradient
      if not rawequal(gradients[n], gradient) then made[#made + 1] = gradients[n] end
    end
  end
  return gradients, names, made
end

-- The same as few tensors as there are, and the views among them.
local function pieces(self, k, holders)
  local set = self.sets[k]
  if set.flat and set.joint and not set.late and (not holders or set.one) then
    return (not holders or set.holders == holders) and { set.flat } or {}, {}
  end
  local list, _, made = list_of(self, k, holders)
  return list, made
end

--- Multiplies the gradients of a set by a factor.
---@param k integer
---@param factor number
function States:scale(k, factor)
  if factor == 1 then return end
  local list, made = pieces(self, k)
  train.scale(list, factor)
  C.release(unpack(made))
end

--- Sum of the squares of a set's gradients, of those that so many ranks hold.
---@param k integer
---@param holders integer
---@return number
function States:squares(k, holders)
  local list, made = pieces(self, k, holders)
  local norm = train.scale_and_norm(list, 1)
  C.release(unpack(made))
  return norm ^ 2
end

--- Clips the gradients of a set to a norm of all gradients, as torch.nn.utils.clip_grad_norm_ does.
---@param k integer
---@param norm number of all gradients
---@param maximum number 0: no clipping
function States:clip(k, norm, maximum)
  local factor = maximum > 0 and maximum / (norm + 1e-6) or 1
  if factor < 1 then self:scale(k, factor) end
end

--- Updates the weights of a set.
---@param k integer
---@param lr number learning rate of the default group
function States:update(k, lr)
  if self.sets[k].cut or self.on_host.slots then
    return sharded.update(self, self.sets[k], lr)
  end
  local gradients, names = list_of(self, k)
  local weights, slots = {}, {}
  for i, name in ipairs(names) do weights[i], slots[i] = self.data[name], self.slots[name] end
  -- Kernels walk weight and gradient by address: a gradient that lies otherwise is laid anew.
  local found = { unpack(gradients) }
  train.align(weights, gradients)
  for i, gradient in ipairs(gradients) do
    if not rawequal(gradient, found[i]) then self:put(names[i], gradient) end
  end
  self.optimizer:update(slots, gradients, lr)
end

--- What this rank updates of a weight: a view of it, or the weight; nil: nothing.
---@param name string
---@return nnscaler.Tensor|nil
function States:own(name)
  local range, data = self.ranges[name], self.data[name]
  if not range then return data end
  return range[2] > 0 and sharded.part(self, name, data) or nil
end

--- This rank's shard of what lies as a gradient before it is summed, where the gradient is one.
---@param name string
---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function States:like_gradient(name, x)
  local leaf, gradient = self.leaves[name], self:gradient(name)
  if not self.ranges[name] or not gradient
    or gradient.shape[leaf.dim + 1] == leaf.length then
    return x
  end
  return sharded.part(self, name, x)
end

--- Makes the weights of a set whole again: each rank gives the shards that it has updated.
---@param k integer
---@param over integer[] the ranks that have them
function States:gather(k, over) sharded.gather(self, self.sets[k], over) end

--- Has an optimizer update the weights.
---@param optimizer nnscaler.Optimizer
---@param name_of? fun(name: string): string of a parameter in the optimizer, if it has other names
function States:attach(optimizer, name_of)
  self.optimizer, self.slots = optimizer, {}
  for name in next, self.leaves do
    local there = name
    if name_of then there = name_of(name) end
    self.slots[name] = there and optimizer.by_name[there]
  end
end

return M
