--- A loader over any Lua object with `len()` and `get(i)`: on the main thread, or on worker threads
--- that each make the data set again in a Lua state of their own. What `get(i)` draws, by
--- math.random or by tensors, depends on seed, epoch and i alone, so both give the same bits.
local collate = require 'nnscaler.data.collate'
local draws = require 'nnscaler.data.draws'
local fail = require 'nnscaler.fail'
local make_sampler = require 'nnscaler.data.sampler'
local nearest = require 'nnscaler.nearest'
local sorted = require 'nnscaler.sorted'
local workers = require 'nnscaler.data.workers'

---@class nnscaler.data.Loader: nnscaler.Loader
local Loader = {}
Loader.__index = Loader

--- Returns the indices in the data set of micro-batch n.
---@param n integer
---@return integer[]
function Loader:ids(n)
  if type(n) ~= 'number' or n < 0 or n % 1 ~= 0 then
    fail('data', 'data.loader', ('there is no micro-batch %s; expected 0, 1, …')
      :format(tostring(n)))
  end
  local epoch = math.floor(n / self.per_epoch)
  local first = n % self.per_epoch * self.batch
  local out = {}
  for position = first, math.min(first + self.batch, self.size) - 1 do
    out[#out + 1] = self.sampler:index(epoch, position, self.size)
  end
  return out
end

--- Returns micro-batch n.
---@param n integer
---@return any
function Loader:get(n)
  if n % self.replicas ~= self.rank then
    fail('data', 'data.loader', ('micro-batch %d belongs to replica %d; this is replica %d of %d')
      :format(n, n % self.replicas, self.rank, self.replicas))
  end
  if self.workers then return self.workers:get(n) end
  return self:make(n)
end

-- Micro-batch n, made here.
function Loader:make(n)
  local epoch = math.floor(n / self.per_epoch)
  return draws.during(function(seed_for)
    local samples = self:ids(n)
    for i, index in ipairs(samples) do
      seed_for(self.seed, epoch, index)
      samples[i] = self.dataset:get(index)
    end
    return self.collate(samples)
  end)
end

---@class nnscaler.data.LoaderOptions
---@field dataset table object with len() and get(i), i from 0: nested tables of tensors
---@field batch integer samples of a micro-batch
---@field shuffle? boolean default false
---@field drop_last? boolean leave out an epoch's last micro-batch if not full; default false
---@field collate? fun(samples: any[]): any default: nnscaler.data.collate
---@field sampler? nnscaler.data.Sampler in place of seed, replicas and rank; any object with
---  index(epoch, position, size)
---@field seed? integer
---@field num_workers? integer worker threads; default 0
---@field prefetch? integer micro-batches that each worker makes ahead; default 2
---@field stride? integer micro-batches are asked for in steps of it; default: replicas
---@field worker? { module: string, argument: string } how a worker makes this loader again
---@field replicas? integer
---@field rank? integer

local known = { dataset = true, batch = true, shuffle = true, drop_last = true, collate = true,
  sampler = true, seed = true, replicas = true, rank = true, collate_fn = true,
  num_workers = true, prefetch = true, worker = true, stride = true }

--- Returns a loader.
---@param options nnscaler.data.LoaderOptions
---@return nnscaler.data.Loader
return function(options)
  for _, key in ipairs(sorted.sorted_keys(options)) do
    if not known[key] then
      fail('usage', 'data.loader', ("unknown option '%s'"):format(tostring(key)),
        nearest(key, sorted.sorted_keys(known)))
    end
  end
  local dataset, batch = options.dataset, options.batch
  local kind = type(dataset)
  if (kind ~= 'table' and kind ~= 'userdata') or not dataset.len or not dataset.get then
    fail('usage', 'data.loader', ('the data set is a %s without len() and get(i)'):format(kind),
      'give it both, or a training_loader(options) that returns a loader')
  end
  if type(batch) ~= 'number' or batch < 1 or batch % 1 ~= 0 then
    fail('usage', 'data.loader', ('batch = %s; expected an integer of at least 1'):format(
      tostring(batch)))
  end
  local size = dataset:len()
  if type(size) ~= 'number' or size < 1 or size % 1 ~= 0 then
    fail('data', 'data.loader', ('the data set has %s samples; expected at least 1'):format(
      tostring(size)))
  end
  local sampler = options.sampler or make_sampler {
    seed = options.seed, replicas = options.replicas, rank = options.rank,
    shuffle = options.shuffle == true,
  }
  local per_epoch = options.drop_last and math.floor(size / batch) or math.ceil(size / batch)
  if per_epoch == 0 then
    fail('data', 'data.loader', ('the data set has %d samples; a batch needs %d'):format(size,
      batch),
      'take a smaller batch, or drop_last = false')
  end
  local made = setmetatable({
    dataset = dataset, batch = batch, seed = options.seed or 0, size = size,
    sampler = sampler, per_epoch = per_epoch,
    collate = options.collate_fn or options.collate or collate, replicas = sampler.replicas or 1,
    rank = sampler.rank or 0,
  }, Loader)
  made.workers = workers.of(options, options.stride or made.replicas)
  return made
end
