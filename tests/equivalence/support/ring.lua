--- Bytes that a rank sends in a ring all-reduce of so many float64 numbers: to each other rank its
--- part of the addend, then the sum of the part that it makes itself. Parts are equal but for the
--- last ones.
---@param n integer ranks
---@param position integer of this one, from 0
---@param elements integer
---@return integer
return function(n, position, elements)
  local part = math.ceil(elements / n)
  local own = math.max(0, math.min(part, elements - position * part))
  return (elements - own + (n - 1) * own) * 8
end
