--- Finds what a configuration names: `type: cosine` is one of ours, `type: my.models.net` is found
--- by `require`, in the job's folder first, then in the library; `my.models.Net` may also be the
--- field Net of module my.models. In Lua a value may stand in the place of a name.
local fail = require 'nnscaler.fail'

-- Whether some loader knows the module. An error inside the module is its own, not "not found".
local function known(name)
  if package.loaded[name] ~= nil then return true end
  for _, loader in ipairs(package.loaders) do
    if type(loader(name)) == 'function' then return true end
  end
  return false
end

local function field_of_module(name)
  local parent, field = name:match('^(.+)%.([^.]+)$')
  if not parent or not known(parent) then return nil end
  local module = require(parent)
  return type(module) == 'table' and module[field] or nil
end

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
  if known(name) then return require(name) end
  local value = field_of_module(name)
  if value ~= nil then return value end
  local listed = what.builtin and #what.builtin > 0
  fail('usage', what.key, ("nothing is named '%s'; expected %sa module that returns %s"):format(
    name, listed and table.concat(what.builtin, ', ') .. ', or ' or '', what.expects),
    'modules are looked for in the folder of the job, then in the library')
end
