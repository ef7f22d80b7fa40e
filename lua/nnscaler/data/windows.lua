--- What data sets of one long token sequence share: the cut into a part to train on and a part to
--- validate on, and loaders of windows { x =, y = } (int64, [batch, block]; y is x one token on).
---
--- Training windows lie inside the first part, so they share no token with validation. Validation
--- is
--- one fixed pass over the second part in windows that do not overlap; the last micro-batch holds
--- the
--- shorter last window alone, so every target counts once.
local C = require 'nnscaler._C.data'
local fail = require 'nnscaler.fail'
local nearest = require 'nnscaler.nearest'
local sorted = require 'nnscaler.sorted'

---@class nnscaler.data.Windows: nnscaler.Loader
local Loader = {}
Loader.__index = Loader

---@param n integer
---@return { x: nnscaler.Tensor, y: nnscaler.Tensor }
function Loader:get(n)
  local x, y = self.windows:get(n)
  return { x = x, y = y }
end

--- Returns the positions in the sequence at which the windows of a micro-batch start.
---@param n integer
---@return integer[]
function Loader:ids(n) return self.windows:starts(n) end

---@class nnscaler.data.Sequence
---@field block integer tokens of a window
---@field vocab integer number of different tokens
---@field train_tokens integer
---@field validation_tokens integer
---@field sampling 'random'|'epoch'
local Sequence = {}

local loader_options = { batch = true, seed = true, shuffle = true, drop_last = true,
  prefetch = true, replicas = true, rank = true, stride = true }

local function loader(self, handle, part, options)
  for _, key in ipairs(sorted.sorted_keys(options)) do
    if not loader_options[key] then
      fail('usage', 'data.windows', ("option '%s' of a loader of windows; expected %s"):format(key,
        table.concat(sorted.sorted_keys(loader_options), ', ')),
        'windows of a text have an order of their own, and are made ahead on a thread')
    end
  end
  local windows = C.windows(handle, {
    begin = part.begin, stop = part.stop, order = part.order, block = self.block,
    batch = options.batch, seed = options.seed, drop_last = options.drop_last,
    prefetch = options.prefetch, replicas = options.stride or options.replicas,
    vocab = self.checked_vocab,
  })
  return setmetatable({ windows = windows, per_epoch = windows:per_epoch() }, Loader)
end

--- Returns a loader of training windows.
---@param options nnscaler.LoaderOptions
---@return nnscaler.Loader
function Sequence:training_loader(options)
  local order = self.sampling
  if order == 'epoch' and options.shuffle == false then
    fail('usage', 'data.windows', 'shuffle = false; windows of a text are always shuffled')
  end
  return loader(self, self.handle, { begin = 0, stop = self.train_tokens, order = order }, options)
end

--- Returns a loader of one pass over the validation part, or nil when there is none.
---@param options nnscaler.LoaderOptions
---@return nnscaler.Loader|nil
function Sequence:validation_loader(options)
  local first = self.validation_first
  if self.validation_tokens == 0 then return nil end
  return loader(self, self.validation_handle, {
    begin = first, stop = first + self.validation_tokens, order = 'pass',
  }, { batch = options.batch, prefetch = options.prefetch, stride = options.stride,
    replicas = options.replicas, sampler = options.sampler, collate_fn = options.collate_fn,
    num_workers = options.num_workers })
end

local known = { block = true, validation = true, sampling = true, vocab = true,
  validation_file = true }

local M = { Sequence = Sequence }

--- Checks the options and fills in defaults.
---@param area string for messages
---@param options table
---@param block? integer where the options name none
---@return table options
function M.options(area, options, block)
  local o = { validation = 0.1, sampling = 'random', block = block }
  for _, key in ipairs(sorted.sorted_keys(options or {})) do
    if not known[key] then
      fail('usage', area, ("unknown option '%s'; expected block, validation, validation_file, "
        .. 'sampling or vocab'):format(tostring(key)), nearest(key, sorted.sorted_keys(known)))
    end
    o[key] = options[key]
  end
  if type(o.block) ~= 'number' or o.block < 1 or o.block % 1 ~= 0 then
    fail('usage', area, ('block = %s; expected an integer of at least 1'):format(tostring(o.block)))
  end
  if type(o.validation) ~= 'number' or o.validation < 0 or o.validation >= 1 then
    fail('usage', area, ('validation = %s; expected a share of the text, 0 ≤ share < 1'):format(
      tostring(o.validation)))
  end
  if o.sampling ~= 'random' and o.sampling ~= 'epoch' then
    fail('usage', area, ("sampling = '%s'; expected 'random' or 'epoch'"):format(
      tostring(o.sampling)))
  end
  return o
end

--- Returns the path and the other options of one table, as a configuration file gives them.
---@param area string
---@param args table
---@return string path, table options
function M.split_path(area, args)
  local options = {}
  for key, value in sorted.sorted_pairs(args) do
    if key ~= 'path' then options[key] = value end
  end
  if type(args.path) ~= 'string' then
    fail('usage', area, ('path = %s; expected the name of a file'):format(tostring(args.path)))
  end
  return args.path, options
end

--- Cuts a sequence into the two parts, and checks that a window fits into each.
---@param self table gets the fields of nnscaler.data.Sequence
---@param area string
---@param path string
---@param handle userdata tokens
---@param o table what `options` returned
---@param validation_handle userdata|nil tokens of a second file, validated on as a whole
function M.cut(self, area, path, handle, o, validation_handle)
  local size = handle:size()
  local train = validation_handle and size or math.floor(size * (1 - o.validation))
  self.path, self.handle, self.block, self.sampling = path, handle, o.block, o.sampling
  self.train_tokens = train
  self.validation_handle = validation_handle or handle
  self.validation_first = validation_handle and 0 or train
  self.validation_tokens = validation_handle and validation_handle:size() or size - train
  if train < o.block + 1 then
    fail('data', area, ("'%s' has %d tokens, %d of them to train on; a block of %d needs at least "
      .. '%d'):format(path, size, train, o.block, o.block + 1), 'take a longer text or a smaller '
      .. 'block')
  end
  if self.validation_tokens > 0 and self.validation_tokens < o.block + 1 then
    fail('data', area, ("'%s' leaves %d tokens to validate on; a block of %d needs at least %d")
      :format(path, self.validation_tokens, o.block, o.block + 1), 'take a longer text, a smaller '
      .. 'block, a larger share, or validation = 0')
  end
end

return M
