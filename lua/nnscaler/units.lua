--- Sizes as people read them.
local M = {}

local kUnits = { 'B', 'KB', 'MB', 'GB', 'TB' }

--- Bytes: 1536 → '1.5 KB'.
---@param bytes number
---@return string
function M.bytes(bytes)
  local unit = 1
  while bytes >= 1024 and unit < #kUnits do
    bytes, unit = bytes / 1024, unit + 1
  end
  return (unit == 1 and '%d %s' or '%.1f %s'):format(bytes, kUnits[unit])
end

return M
