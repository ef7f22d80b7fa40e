--- Numbers as people and as files want them.
local M = {}

--- Three decimals, or scientific where those would say little: 2.261, 1.000e-04.
---@param x number
---@return string
function M.short(x)
  if x ~= x then return 'nan' end
  if x == math.huge or x == -math.huge then return x > 0 and 'inf' or '-inf' end
  local size = math.abs(x)
  if x ~= 0 and (size < 1e-3 or size >= 1e5) then return ('%.3e'):format(x) end
  return ('%.3f'):format(x)
end

--- Whole numbers in groups of three: 10,745,088.
---@param n integer
---@return string
function M.grouped(n)
  local text = ('%.0f'):format(n)
  local head = #text % 3
  local parts = head > 0 and { text:sub(1, head) } or {}
  for i = head + 1, #text, 3 do parts[#parts + 1] = text:sub(i, i + 2) end
  return table.concat(parts, ',')
end

--- A duration: 45 s, 1:02:03.
---@param seconds number
---@return string
function M.duration(seconds)
  local s = math.floor(seconds + 0.5)
  if s < 3600 then return ('%d:%02d'):format(s / 60, s % 60) end
  return ('%d:%02d:%02d'):format(s / 3600, s / 60 % 60, s % 60)
end

--- Seconds in a unit that suits them: 12.3 us, 4.56 ms, 7.890 s.
---@param s number
---@return string
function M.seconds(s)
  if s < 1e-3 then return ('%.1f us'):format(s * 1e6) end
  if s < 1 then return ('%.2f ms'):format(s * 1e3) end
  return ('%.3f s'):format(s)
end

--- JSON of a number with 17 digits; what is not finite has no JSON number and becomes null.
---@param x number
---@return string
function M.json_number(x)
  if x ~= x or x == math.huge or x == -math.huge then return 'null' end
  return ('%.17g'):format(x)
end

return M
