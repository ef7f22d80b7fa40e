--- debug.check_gradient_sync_cross_devices: ranks that hold the same part of a weight must have
--- the same summed gradient of it, bit for bit. Gradients that are summed into shards are left out:
--- each shard is on one rank of a group.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local ranks = require 'nnscaler.ranks'
local sorted = require 'nnscaler.sorted'

-- What this rank has: hash of the gradient by name and place of the part.
local function own(t)
  local fingerprint, list = require('nnscaler._C.train').fingerprint, {}
  local scattered = {} -- whole only where no rank looks
  for _, set in ipairs(t.engine.states and t.engine.states.sets or {}) do
    for _, name in ipairs(set.scatter and set.names or {}) do scattered[name] = true end
  end
  for _, parameter in ipairs(t.engine.parameters) do
    local gradient = parameter.requires_grad and not scattered[parameter.name]
      and t.engine:grad(parameter.name)
    if gradient then
      local part = t.sharing.parts[parameter.name]
      local at = part.start and table.concat(part.start, ',') or ''
      list[('%s\n%s[%s]'):format(parameter.name, at, table.concat(gradient.shape, ','))] =
        tostring(fingerprint(gradient))
    end
  end
  return list
end

--- Raises, on all ranks, where gradients differ. A collective.
---@param t nnscaler.Trainer
return function(t)
  if not t.sharing or t.world_size == 1 then return end
  local seen = {} -- by weight and place: hash → ranks
  for r, text in ipairs(ranks.exchange(base.json_encode(own(t)))) do
    for key, hash in sorted.sorted_pairs(base.json_decode(text)) do
      seen[key] = seen[key] or {}
      seen[key][hash] = seen[key][hash] or {}
      table.insert(seen[key][hash], r - 1)
    end
  end
  for _, key in ipairs(sorted.sorted_keys(seen)) do
    local hashes = sorted.sorted_keys(seen[key])
    if #hashes > 1 then
      local groups = {}
      for i, hash in ipairs(hashes) do groups[i] = table.concat(seen[key][hash], ', ') end
      table.sort(groups)
      fail('state', 'debug.gradient_sync', ("step %d: the summed gradient of '%s' differs between "
        .. 'ranks %s; expected equal bits'):format(t.step + 1, key:match '^[^\n]*',
        table.concat(groups, ' and ')), 'a hook changed it on some ranks, or an operator of yours '
        .. 'gives other bits there')
    end
  end
end
