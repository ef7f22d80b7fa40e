--- What each rank of a spec runs whose models stand outside of the list of the plan matrix: cells
--- in order, of models that a module adds.
local base = require 'nnscaler._C.base'
local cell = require 'tests.equivalence.plans.cell'

---@param argument string JSON { module, cells }
---@return string JSON list of { bad, lines, worst, cuts } or { bad, error }; cuts: operators that
---   the plan cuts
return function(argument)
  require('nnscaler.log').set_level 'error'
  local asked, results = base.json_decode(argument), {}
  require(asked.module)
  for i, one in ipairs(asked.cells) do
    local ok, result = pcall(cell.run, one)
    results[i] = ok and { bad = result.bad, lines = result.lines, worst = result.worst,
      cuts = select(2, result.plan:gsub(': input %d+ dim ', '')) }
      or { bad = {}, error = tostring(result) }
  end
  return base.json_encode(results)
end
