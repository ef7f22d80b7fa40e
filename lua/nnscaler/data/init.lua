--- Data sets and loaders. A loader gives `get(n)`, micro-batch number n (from 0) as nested tables
--- of
--- tensors, a pure function of seed and n; `ids(n)`, what identifies its samples; and `per_epoch`,
--- micro-batches an epoch, or nil when endless. So position in the data is one number.
---
--- A data set is either an object with `training_loader(options)` (and `validation_loader`), as the
--- ones here are, or any object with `len()` and `get(i)` (i from 0).
local sorted = require 'nnscaler.sorted'

local parts = {
  characters = 'nnscaler.data.characters', tokens = 'nnscaler.data.tokens',
  loader = 'nnscaler.data.loader', sampler = 'nnscaler.data.sampler',
  collate = 'nnscaler.data.collate', random_samples = 'nnscaler.data.random_samples',
  random_tokens = 'nnscaler.data.random_tokens', tokenizer = 'nnscaler.data.tokenizer',
  masked = 'nnscaler.data.masked', shapes = 'nnscaler.data.shapes',
}

local M = {}

---@class nnscaler.Loader
---@field per_epoch integer|nil micro-batches an epoch, over all replicas
---@field get fun(self, n: integer): table micro-batch number n
---@field ids fun(self, n: integer): integer[] what identifies its samples

---@class nnscaler.LoaderOptions
---@field batch integer samples of a micro-batch
---@field seed? integer
---@field shuffle? boolean default true
---@field drop_last? boolean default true
---@field prefetch? integer micro-batches made ahead on a thread; default 2, or 2 a worker
---@field num_workers? integer Lua states of their own that make the samples of a data set with len
---  and get; default 0: the main thread does
---@field sampler? table in place of seed and shuffle: index(epoch, position, size)
---@field collate_fn? fun(samples: any[]): any in place of nnscaler.data.collate
---@field stride? integer micro-batches are asked for in steps of it: what is made ahead
---@field replicas? integer scale units U: this one asks for numbers n with n mod U = rank
---@field rank? integer

-- Options with some of them set.
local function with(options, set)
  local out = {}
  for key, value in sorted.sorted_pairs(options) do out[key] = value end
  for key, value in sorted.sorted_pairs(set) do out[key] = value end
  return out
end

local function has(object, method)
  local kind = type(object)
  return (kind == 'table' or kind == 'userdata') and object[method] ~= nil
end

--- Returns a loader of training data for any data set; a loader is returned as it is.
---@param dataset any
---@param options nnscaler.LoaderOptions
---@return nnscaler.Loader
function M.training_loader(dataset, options)
  if has(dataset, 'training_loader') then return dataset:training_loader(options) end
  if has(dataset, 'get') and has(dataset, 'ids') then return dataset end
  return M.loader(with(options, { dataset = dataset, shuffle = options.shuffle ~= false }))
end

--- Whether a data set holds validation data beside its training data.
---@param dataset any
---@return boolean
function M.has_validation(dataset) return has(dataset, 'validation_loader') end

--- Returns a loader of one fixed pass over the validation data that a data set holds beside its
--- training data; nil when it holds none. For a data set of validation samples alone (len and get)
--- take `pass`.
---@param dataset any
---@param options nnscaler.LoaderOptions
---@return nnscaler.Loader|nil
function M.validation_loader(dataset, options)
  if has(dataset, 'validation_loader') then return dataset:validation_loader(options) end
  return nil
end

--- Returns a loader of one pass in order, last batch smaller: evaluation of a whole data set.
---@param dataset any
---@param options nnscaler.LoaderOptions
---@return nnscaler.Loader
function M.pass(dataset, options)
  if has(dataset, 'validation_loader') then
    local loader = dataset:validation_loader(options)
    if loader then return loader end
  end
  if has(dataset, 'get') and has(dataset, 'ids') then return dataset end
  return M.loader(with(options, { dataset = dataset, drop_last = options.drop_last or false,
    shuffle = options.shuffle or false }))
end

local function default_text()
  local getenv = os.getenv
  local cache = getenv 'XDG_CACHE_HOME' or ((getenv 'HOME' or '') .. '/.cache')
  return cache .. '/nnscaler/shakespeare.txt'
end

return setmetatable(M, {
  __index = function(t, key)
    local value
    if key == 'shakespeare' then -- path of the default text, which `make setup` unpacks
      value = default_text()
    elseif parts[key] then
      value = require(parts[key])
    end
    if value ~= nil then rawset(t, key, value) end
    return value
  end,
})
