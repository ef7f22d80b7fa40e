--- Worker threads of a loader: `num_workers` Lua states that make the same loader again and give
--- its micro-batches in turn, ahead of their use.
local C = require 'nnscaler._C.workers'
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local nested = require 'nnscaler.nested'

local M = {}

---@class nnscaler.data.Workers
local Workers = {}
Workers.__index = Workers

local function integer(options, key, default, least)
  local value = options[key]
  if value == nil then value = default end
  if type(value) ~= 'number' or value % 1 ~= 0 or value < least then
    fail('usage', 'data.loader', ('%s = %s; expected an integer of at least %d'):format(key,
      tostring(value), least))
  end
  return value
end

--- The workers that a loader's options ask for; nil without any.
---@param options { num_workers?: integer, prefetch?: integer,
---  worker?: { module: string, argument: string } }
---@param stride integer micro-batches are asked for in steps of it
---@return nnscaler.data.Workers|nil
function M.of(options, stride)
  local count, depth = integer(options, 'num_workers', 0, 0), integer(options, 'prefetch', 2, 1)
  if count == 0 then return nil end
  local how = options.worker
  if not how then
    fail('usage', 'data.loader', ('num_workers = %d of a data set that only this Lua state has')
      :format(count), 'a worker makes the data set again: name it in a job file, '
      .. 'dataset = { type = …, args = … }, and start that with nnscaler run')
  end
  local handle = C.start(count, stride, depth, how.module, how.argument)
  return setmetatable({ handle = handle }, Workers)
end

--- Micro-batch n.
---@param n integer
---@return any
function Workers:get(n)
  local code, tensors = self.handle:get(n)
  return nested.decode(base.json_decode(code), tensors)
end

--- What a worker gives of a loader: the form of micro-batch n, and its tensors.
---@param loader nnscaler.Loader
---@return fun(n: integer): string, nnscaler.Tensor[]
function M.serve(loader)
  return function(n)
    local tensors = {}
    local code = nested.encode(loader:get(n), tensors)
    return base.json_encode(code), tensors
  end
end

return M
