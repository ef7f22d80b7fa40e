--- Weights from one rank to those that hold the same (broadcast_weights), and as hooks see them.
local base = require 'nnscaler._C.base'
local door = require 'nnscaler._C.tensor'
local groups = require 'nnscaler.runtime.comm'
local store = require 'nnscaler.runtime.store'
local tensor = require 'nnscaler.tensor'

local M = {}

--- Overwrites every part of a weight by that of the first rank that holds it. A collective of all
--- ranks.
---@param shared nnscaler.Sharing
---@param leaves { name: string, data: nnscaler.Tensor }[] parameters and buffers of this rank
function M.broadcast(shared, leaves)
  local mine, data = {}, {}
  for i, leaf in ipairs(leaves) do
    local part = shared.parts[leaf.name]
    mine[i] = ('%s[%s]'):format(leaf.name, table.concat(part.start or {}, ','))
    data[mine[i]] = leaf.data
  end
  local order, holders = {}, {}
  for r, text in ipairs(groups.group(shared.everybody):exchange(base.json_encode(mine))) do
    for _, key in ipairs(base.json_decode(text)) do
      if not holders[key] then
        order[#order + 1], holders[key] = key, {}
      end
      table.insert(holders[key], r - 1)
    end
  end
  for _, key in ipairs(order) do
    if #holders[key] > 1 and data[key] then
      groups.group(holders[key]):broadcast(data[key]:detach(), 0)
    end
  end
end

-- Parameter → the sharing of the run that it belongs to.
local shared_by = setmetatable({}, { __mode = 'k' })

--- Shows a parameter or buffer of the model in a run of several ranks: `data` is what this rank
--- holds of it, no elements where that is nothing, and `full()` is all of it.
---@param shared nnscaler.Sharing
---@param parameter nnscaler.Tensor of the model
---@param part nnscaler.Tensor|nil
---@param start integer[]|nil
function M.show(shared, parameter, part, start)
  if not part then
    local shape = parameter.shape
    shape[1] = 0
    part = tensor.zeros(shape, { dtype = parameter.dtype })
  end
  parameter:_hold(part, start)
  shared_by[parameter] = shared
end

--- The whole of a parameter, which this rank may hold nothing of. A collective of all ranks.
function door.full_of(parameter)
  local shared, data = shared_by[parameter], parameter.data
  if not shared then return data end
  local name, part = parameter.path, shared.parts[parameter.path]
  local one = store.new({ { name = name, kind = 'parameter',
    slice = part and store.slice_of(part) } }, shared.everybody, shared.rank)
  return one:gather(part and { { key = name, name = name, data = data } } or {})[name]:detach()
end

return M
