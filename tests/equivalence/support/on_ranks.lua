--- Runs a module on rank threads; argument and results travel as JSON.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'

---@param ranks integer
---@param module string name of a module that returns a function of JSON to JSON
---@param argument table
---@return table[] results, that of rank 0 first
return function(ranks, module, argument)
  local results = comm.run_local(ranks, module, base.json_encode(argument))
  for r, text in ipairs(results) do results[r] = base.json_decode(text) end
  return results
end
