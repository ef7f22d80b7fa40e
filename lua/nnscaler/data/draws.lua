--- Random numbers of samples: a pure function of seed, epoch and index, in whatever Lua state and
--- order samples are made. math.random of this state is seeded by the last one.
local base = require 'nnscaler._C.base'
local door = require 'nnscaler._C.tensor'

local M = {}

-- Sets the draws of one sample.
local function seed_for(seed, epoch, index)
  local hash = base.hash(('data %d %d %d'):format(seed, epoch, index))
  math.randomseed(tonumber(hash:sub(1, 8), 16))
  door.set_random { seed = tonumber(hash:sub(1, 12), 16), step = 0, micro = 0 }
  door.reset_ordinals()
end

--- Runs `work(seed_for)`, which makes samples; draws of tensors go on as before afterwards.
---@generic T
---@param work fun(seed_for: fun(seed: integer, epoch: integer, index: integer)): T
---@return T
function M.during(work)
  return door.apart(function() return work(seed_for) end)
end

return M
