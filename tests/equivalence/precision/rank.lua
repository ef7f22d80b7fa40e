--- What each rank of the precision tests runs: cells in order.
local base = require 'nnscaler._C.base'
local cells = require 'tests.equivalence.precision.cells'

---@param argument string JSON list of cells
---@return string JSON list of their errors
return function(argument)
  require('nnscaler.log').set_level 'error'
  local results = {}
  for i, cell in ipairs(base.json_decode(argument)) do
    local ok, made = pcall(cells.rank, cell)
    if not ok then error(('%s, %s: %s'):format(cell.precision, cell.name, tostring(made)), 0) end
    results[i] = made
  end
  return base.json_encode(results)
end
