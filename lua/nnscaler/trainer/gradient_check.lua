--- debug.check_gradient_sync_cross_devices: ranks that hold the same part of a summed gradient must
--- have the same bits of it.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local ranks = require 'nnscaler.ranks'
local shards = require 'nnscaler.runtime.shards'
local sorted = require 'nnscaler.sorted'
local store = require 'nnscaler.runtime.store'

-- What this rank has: hash of the gradient by name and place of the part.
local function own(t)
  local fingerprint, list = require('nnscaler._C.train').fingerprint, {}
  for _, parameter in ipairs(t.engine.parameters) do
    local gradient = parameter.requires_grad and t.engine:grad(parameter.name)
    if gradient then
      local part = t.sharing.parts[parameter.name]
      local slice = store.slice_of(part)
      if part.scatter or part.zero == 2 then -- it rests in shards, or one in it is right
        slice = shards.slice(part, t.sharing.rank)
        if slice and gradient.shape[part.dim + 1] == part.length then
          gradient = gradient:narrow(part.dim, shards.range(part,
            shards.position(part, t.sharing.rank)))
        end
      end
      if slice then
        list[parameter.name .. '\n' .. store.key(slice)] = tostring(fingerprint(gradient))
      end
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
