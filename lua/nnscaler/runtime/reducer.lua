--- Sums gradients over ranks in buckets. The gradients of a bucket lie one after another in a flat
--- tensor, made at the first of them: addends are added there, and the sum is one all-reduce in
--- place that copies nothing. A bucket starts as soon as the last backward of a step has completed
--- its gradients, always in the order of the program, so that all ranks agree; back ends that work
--- asynchronously overlap it with what is left of backward.
local C = require 'nnscaler._C.runtime'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler.runtime.groups'
local tensor = require 'nnscaler.tensor'

local M = {}

-- Metatable of a table of gradients some of which lie in buckets.
local Homes = {}

-- Puts a first addend where its gradient lies; false where that is nowhere in particular.
function Homes:place(gradients, key, x)
  local home = self.of[key]
  if not home then return false end
  local view = self.reducer:open(home.bucket)[home.index]
  tensor.no_grad(view.copy_, view, x)
  gradients[key] = view
  return true
end

-- Notes that an addend came.
function Homes:arrived(key)
  local home = self.of[key]
  if home and self.reducer.armed then self.reducer:count(home.bucket) end
end

--- Adds to a gradient and takes x over, as generated programs do.
---@param gradients table
---@param key string|integer
---@param x nnscaler.Tensor
function M.accumulate(gradients, key, x)
  local homes = getmetatable(gradients)
  if homes and gradients[key] == nil and homes:place(gradients, key, x) then
    C.release(x)
  else
    C.accumulate(gradients, key, x)
  end
  if homes then homes:arrived(key) end
end

--- The same for a tensor that is still read later.
function M.accumulate_copy(gradients, key, x)
  local homes = getmetatable(gradients)
  if not (homes and gradients[key] == nil and homes:place(gradients, key, x)) then
    C.accumulate_copy(gradients, key, x)
  end
  if homes then homes:arrived(key) end
end

---@class nnscaler.Sum of the gradient of one parameter
---@field name string of the parameter
---@field ranks integer[]

---@alias nnscaler.ReducerHook fun(sum: nnscaler.Sum, gradient: nnscaler.Tensor)

--- Sums a gradient in place over ranks, between hooks.
---@param sum nnscaler.Sum
---@param gradient nnscaler.Tensor
---@param hooks? { before: nnscaler.ReducerHook[], after: nnscaler.ReducerHook[] }
function M.sum(sum, gradient, hooks)
  for _, hook in ipairs(hooks and hooks.before or {}) do hook(sum, gradient) end
  comm.group(sum.ranks):all_reduce(gradient)
  for _, hook in ipairs(hooks and hooks.after or {}) do hook(sum, gradient) end
end

---@class nnscaler.Reducer
local Reducer = {}
Reducer.__index = Reducer

--- Makes the reducer of a program.
---@param options { buckets: table[], shares: table[], places: table, device: string?,
---  overlap: boolean } buckets and shares as the program tells them; places of gradients by name;
---  overlap: all members of a group run the same calls in the same order
---@return nnscaler.Reducer
function M.new(options)
  local self = setmetatable({ places = options.places, device = options.device, buckets = {},
    shares = {}, in_bucket = {}, overlap = options.overlap, copied = 0,
    times = { steps = 0, moving = 0, under_way = 0, waited = 0 } }, Reducer)
  for _, share in ipairs(options.shares) do self.shares[share.name] = share end
  for i, bucket in ipairs(options.buckets) do
    local own = { ranks = bucket.ranks, names = bucket.names }
    self.buckets[i] = own
    for k, name in ipairs(bucket.names) do
      self.in_bucket[name] = true
      local place = self.places[name]
      local homes = getmetatable(place.table)
      if not homes then
        homes = { reducer = self, of = {}, place = Homes.place, arrived = Homes.arrived }
        setmetatable(place.table, homes)
      end
      homes.of[place.key] = { bucket = own, index = k }
    end
  end
  if not self.overlap then -- one order for groups that meet in different programs
    table.sort(self.buckets, function(a, b)
      for k = 1, math.min(#a.ranks, #b.ranks) do
        if a.ranks[k] ~= b.ranks[k] then return a.ranks[k] < b.ranks[k] end
      end
      if #a.ranks ~= #b.ranks then return #a.ranks < #b.ranks end
      return a.names[1] < b.names[1]
    end)
  end
  return self
end

--- What is summed, parameter by parameter, in the order that all ranks keep.
---@return nnscaler.Sum[]
function Reducer:sums()
  local list = {}
  for _, bucket in ipairs(self.buckets) do
    for _, name in ipairs(bucket.names) do
      list[#list + 1] = { name = name, ranks = bucket.ranks }
    end
  end
  return list
end

--- Whether the gradient of a parameter is in a bucket.
---@param name string
---@return boolean
function Reducer:knows(name) return self.in_bucket[name] == true end

--- Call at the start of a step.
function Reducer:reset()
  self.armed, self.started, self.absent = false, 0, {}
end

--- Frees what gradients lie in; call when they are forgotten.
function Reducer:forget()
  for _, bucket in ipairs(self.buckets) do
    -- Views that the collector has not met yet would keep the whole of it.
    if bucket.flat then C.release(bucket.flat, unpack(bucket.views)) end
    bucket.flat, bucket.views = nil, nil
  end
end

-- The gradients of a bucket, as views of its flat tensor.
function Reducer:open(bucket)
  if bucket.views then return bucket.views end
  local sizes, total, start = {}, 0, 0
  for i, name in ipairs(bucket.names) do
    local n = 1
    for _, size in ipairs(self.shares[name].shape) do n = n * size end
    sizes[i], total = n, total + n
  end
  bucket.flat = tensor.empty({ total }, { dtype = self.shares[bucket.names[1]].dtype,
    device = self.device })
  bucket.views = {}
  for i, name in ipairs(bucket.names) do
    local part = bucket.flat:narrow(0, start, sizes[i])
    bucket.views[i] = part:view(self.shares[name].shape)
    C.release(part)
    start = start + sizes[i]
  end
  return bucket.views
end

--- Call before the last backward of a step.
---@param addends table<string, integer> that it makes, by parameter; in another graph than the
---  first there may be more or fewer
function Reducer:arm(addends)
  for _, bucket in ipairs(self.buckets) do
    bucket.left = 0
    for _, name in ipairs(bucket.names) do bucket.left = bucket.left + (addends[name] or 0) end
  end
  self.armed = self.overlap
end

-- Notes that the sum of a bucket is there.
function Reducer:arrive(bucket)
  local times = self.times
  bucket.moving = false
  times.moving = times.moving - 1
  if times.moving == 0 then times.under_way = times.under_way + base.clock() - times.since end
end

-- Drives on what is under way: some back ends move only when they are asked.
function Reducer:poll()
  for i = 1, self.started do
    local bucket = self.buckets[i]
    if bucket.moving and bucket.handle:done() then self:arrive(bucket) end
  end
end

-- Called when a gradient of the bucket got an addend; starts each bucket that has all of them.
function Reducer:count(bucket)
  self:poll()
  bucket.left = bucket.left - 1
  while self.started < #self.buckets and self.buckets[self.started + 1].left == 0 do
    self.started = self.started + 1
    self:start(self.buckets[self.started])
  end
end

--- Gradient of a parameter; a rank that has made none adds zeros.
---@param name string
---@return nnscaler.Tensor
function Reducer:gradient(name)
  local place, share = self.places[name], self.shares[name]
  local gradient = place.table[place.key]
  if not gradient then
    gradient = tensor.zeros(share.shape, { dtype = share.dtype, device = self.device })
    place.table[place.key], self.absent[name] = gradient, true
  end
  return gradient
end

-- Has every gradient of a bucket lie there: zeros where there is none, and what was put elsewhere,
-- which is counted.
function Reducer:fill(bucket)
  for i, view in ipairs(self:open(bucket)) do
    local name = bucket.names[i]
    local place = self.places[name]
    local gradient = place.table[place.key]
    if not gradient then
      view:zero_()
      self.absent[name] = true
    elseif not rawequal(gradient, view) then
      view:copy_(gradient)
      self.copied = self.copied + 1
    end
    place.table[place.key] = view
  end
end

function Reducer:start(bucket)
  tensor.no_grad(function()
    self:fill(bucket)
    local times, began = self.times, base.clock()
    if times.moving == 0 then times.since = began end
    times.moving, bucket.moving = times.moving + 1, true
    bucket.handle = comm.group(bucket.ranks):all_reduce_async(bucket.flat)
    times.waited = times.waited + base.clock() - began
  end)
end

--- How long sums were under way, and the share of that in which this rank did not wait for them;
--- nil where there are none.
---@return { seconds: number, hidden: number }|nil seconds a step; hidden: from 0 to 1
function Reducer:overlapped()
  local times = self.times
  if #self.buckets == 0 or times.steps == 0 or times.under_way == 0 then return nil end
  return { seconds = times.under_way / times.steps,
    hidden = math.max(0, 1 - times.waited / times.under_way) }
end

--- Starts what is left and waits for all sums.
function Reducer:finish()
  self.armed = false
  for i = self.started + 1, #self.buckets do self:start(self.buckets[i]) end
  self.started = #self.buckets
  self.times.steps = self.times.steps + 1
  for _, bucket in ipairs(self.buckets) do
    local asked = base.clock()
    bucket.handle:wait()
    self.times.waited = self.times.waited + base.clock() - asked
    if bucket.moving then self:arrive(bucket) end
    bucket.handle = nil
  end
end

return M
