--- Sums gradients over ranks in buckets. A bucket starts as soon as the last backward of a step has
--- completed its gradients, always in the order of the program, so that all ranks agree; back ends
--- that work asynchronously overlap it with what is left of backward.
local C = require 'nnscaler._C.runtime'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler.runtime.groups'
local tensor = require 'nnscaler.tensor'

local M = {}

-- Table of gradients → key → what to call when an addend came; nil but in the last backward.
local watched = nil

--- Adds to a gradient, as generated programs do.
---@param gradients table
---@param key string|integer
---@param x nnscaler.Tensor
function M.accumulate(gradients, key, x)
  C.accumulate(gradients, key, x)
  if watched then M.arrived(gradients, key) end
end

--- The same for a tensor that is still read later.
function M.accumulate_copy(gradients, key, x)
  C.accumulate_copy(gradients, key, x)
  if watched then M.arrived(gradients, key) end
end

function M.arrived(gradients, key)
  local of = watched[gradients]
  if of and of[key] then of[key]() end
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
    shares = {}, in_bucket = {}, watch = {}, overlap = options.overlap,
    times = { steps = 0, moving = 0, under_way = 0, waited = 0 } }, Reducer)
  for _, share in ipairs(options.shares) do self.shares[share.name] = share end
  for i, bucket in ipairs(options.buckets) do
    local own = { ranks = bucket.ranks, names = bucket.names }
    self.buckets[i] = own
    for _, name in ipairs(bucket.names) do
      self.in_bucket[name] = true
      local place = self.places[name]
      self.watch[place.table] = self.watch[place.table] or {}
      self.watch[place.table][place.key] = function() self:count(own) end
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
  watched, self.started, self.absent = nil, 0, {}
end

--- Call before the last backward of a step.
---@param addends table<string, integer> that it makes, by parameter; in another graph than the
---  first there may be more or fewer
function Reducer:arm(addends)
  for _, bucket in ipairs(self.buckets) do
    bucket.left = 0
    for _, name in ipairs(bucket.names) do bucket.left = bucket.left + (addends[name] or 0) end
  end
  watched = self.overlap and #self.buckets > 0 and self.watch or nil
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

-- An addend of a bucket's gradients came.
function Reducer:count(bucket)
  self:poll()
  bucket.left = bucket.left - 1
  while self.started < #self.buckets and self.buckets[self.started + 1].left == 0 do
    self.started = self.started + 1
    self:start(self.buckets[self.started])
  end
end

-- A rank whose micro-batches were all empty adds zeros.
function Reducer:gradient(name)
  local place, share = self.places[name], self.shares[name]
  local gradient = place.table[place.key]
  if not gradient then
    gradient = tensor.zeros(share.shape, { dtype = share.dtype, device = self.device })
    place.table[place.key], self.absent[name] = gradient, true
  end
  return gradient
end

function Reducer:start(bucket)
  tensor.no_grad(function()
    local parts = {}
    for i, name in ipairs(bucket.names) do parts[i] = self:gradient(name):reshape { -1 } end
    bucket.flat = #parts > 1 and tensor.cat(parts, 0) or parts[1]
    -- Views that the collector has not met yet would keep whole gradients.
    if #parts > 1 then C.release(unpack(parts)) end
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
  watched = nil
  for i = self.started + 1, #self.buckets do self:start(self.buckets[i]) end
  self.started = #self.buckets
  tensor.no_grad(function()
    self.times.steps = self.times.steps + 1
    for _, bucket in ipairs(self.buckets) do
      local asked = base.clock()
      bucket.handle:wait()
      self.times.waited = self.times.waited + base.clock() - asked
      if bucket.moving then self:arrive(bucket) end
      local start = 0
      for _, name in ipairs(bucket.names) do
        local gradient = self:gradient(name)
        local n = gradient:numel()
        local part = bucket.flat:narrow(0, start, n)
        local view = part:view_as(gradient)
        gradient:copy_(view)
        C.release(part, view)
        start = start + n
      end
      C.release(bucket.flat)
      bucket.flat, bucket.handle = nil, nil
    end
  end)
end

return M
