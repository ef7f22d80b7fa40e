--- Memory of the host for states that a device has no room for (compute_config.zero_offload). Where
--- the CPU is the device it is a second storage, counted apart, and all goes the same way.
local door = require 'nnscaler._C.tensor'

local M = {}

--- A contiguous copy of a tensor there.
---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.copy(x) return door.host_copy(x) end

--- Moves a tensor there.
---@param x nnscaler.Tensor released
---@return nnscaler.Tensor
function M.take(x)
  local moved = door.host_copy(x)
  door.release(x)
  return moved
end

return M
