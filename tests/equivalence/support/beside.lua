--- Bytes that a rank sends in a step beside what its program says: loss and weight, sum and number
--- of losses, and whether it ran a graph with other gradients; where units wait for each other the
--- number of micro-batches, and whether graphs differ.
local ring = require 'tests.equivalence.support.ring'

---@param n integer ranks
---@param position integer of this one, from 0
---@param lockstep boolean
---@return integer
return function(n, position, lockstep)
  return ring(n, position, 5) + (lockstep and ring(n, position, 2) or 0)
end
