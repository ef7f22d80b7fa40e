--- What each rank of the plan matrix runs: cells in order.
local base = require 'nnscaler._C.base'
local cell = require 'tests.equivalence.plans.cell'

---@param argument string JSON list of cells
---@return string JSON list of results
return function(argument)
  require('nnscaler.log').set_level 'error'
  local results = {}
  for i, one in ipairs(base.json_decode(argument)) do results[i] = cell.run(one) end
  return base.json_encode(results)
end
