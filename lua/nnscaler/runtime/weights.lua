--- Weights from one rank to those that hold the same: broadcast_weights.
local base = require 'nnscaler._C.base'
local groups = require 'nnscaler.runtime.comm'

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

return M
