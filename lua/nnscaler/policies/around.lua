--- Hooks of operators: a policy names a function of the user that runs before or after an operator;
--- the generated program calls it with the operator's local operands or results.
local fail = require 'nnscaler.fail'
local resolve = require 'nnscaler.resolve'

local M = {}

local found = {}

--- Returns the function of a name: a module that is one, or 'my.module.function'.
---@param name string
---@return fun(meta: string, ...: nnscaler.Tensor)
function M.find(name)
  if not found[name] then
    local f = resolve({ key = 'policies.hook', expects = 'a function' }, name)
    if type(f) ~= 'function' then
      fail('usage', 'policies.hook', ("'%s' is a %s; expected a function"):format(name, type(f)))
    end
    found[name] = f
  end
  return found[name]
end

local function run(name, meta, tensors) M.find(name)(meta, unpack(tensors)) end

--- before(name, meta, operands) and after(name, meta, results).
M.before, M.after = run, run

return M
