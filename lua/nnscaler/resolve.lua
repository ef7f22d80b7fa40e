--- Finds what a configuration names: `type: cosine` is one of ours, `type: my.models.net` is found
--- by `require`, in the job's folder first, then in the library. In Lua a value may stand in the
--- place of a name.
local fail = require 'nnscaler.fail'

---@param what { key: string, prefix?: string, builtin?: string[], expects: string }
---   key: place in the configuration, for messages; prefix: module prefix of ours;
---   builtin: names of ours; expects: what a module must return, in words
---@param name any the configured value
---@return any the value that the name stands for
return function(what, name)
  if type(name) ~= 'string' then
    if name == nil then fail('usage', what.key, 'missing; expected ' .. what.expects) end
    return name
  end
  for _, ours in ipairs(what.builtin or {}) do
    if ours == name then return require(what.prefix .. name) end
  end
  for _, module in ipairs { name, 'nnscaler.' .. name } do
    local found, value = pcall(require, module)
    if found then return value end
    local text = type(value) == 'table' and value.message or tostring(value)
    if not text:find(("module '%s' not found"):format(module), 1, true) then error(value, 0) end
  end
  local known = what.builtin and table.concat(what.builtin, ', ') .. ', or ' or ''
  fail('usage', what.key, ("nothing is named '%s'; expected %sa module that returns %s"):format(
    name, known, what.expects))
end
