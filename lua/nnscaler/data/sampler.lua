--- The order in which a data set is read: one permutation an epoch, a pure function of seed and
--- epoch, dealt out to replicas in turn.
local C = require 'nnscaler._C.data'
local fail = require 'nnscaler.fail'

---@class nnscaler.data.Sampler
---@field replicas integer
---@field rank integer
---@field seed integer
---@field shuffle boolean
local Sampler = {}
Sampler.__index = Sampler

--- Returns which sample stands at a position of the epoch's common order.
---@param epoch integer
---@param position integer from 0
---@param size integer samples of the data set
---@return integer index from 0
function Sampler:index(epoch, position, size)
  if not self.shuffle then return position end
  return C.permuted('data:sampler', self.seed, epoch, position, size)
end

--- Returns what this replica reads in an epoch: positions rank, rank + replicas, … of the order.
---@param epoch integer
---@param size integer
---@return integer[]
function Sampler:indices(epoch, size)
  local out = {}
  for position = self.rank, size - 1, self.replicas do
    out[#out + 1] = self:index(epoch, position, size)
  end
  return out
end

local function integer(o, key, default, least)
  local value = o[key]
  if value == nil then value = default end
  if type(value) ~= 'number' or value % 1 ~= 0 or value < least then
    fail('usage', 'data.sampler', ('%s = %s; expected an integer of at least %d'):format(key,
      tostring(value), least))
  end
  return value
end

--- Returns a sampler.
---@param options? { replicas?: integer, rank?: integer, seed?: integer, shuffle?: boolean }
---@return nnscaler.data.Sampler
return function(options)
  local o = options or {}
  local self = setmetatable({
    replicas = integer(o, 'replicas', 1, 1), rank = integer(o, 'rank', 0, 0),
    seed = integer(o, 'seed', 0, 0), shuffle = o.shuffle ~= false,
  }, Sampler)
  if self.rank >= self.replicas then
    fail('usage', 'data.sampler', ('rank %d of %d replicas; expected 0 to %d'):format(self.rank,
      self.replicas, self.replicas - 1))
  end
  return self
end
