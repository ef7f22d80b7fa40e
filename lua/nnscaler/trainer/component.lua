--- Makes what a component of a job describes: `{ type, args }` calls the constructor that `type`
--- names, a function in its place is called, any other value is the thing itself.
local fail = require 'nnscaler.fail'
local resolve = require 'nnscaler.resolve'

local function is_callable(value)
  if type(value) == 'function' then return true end
  local meta = type(value) == 'table' and getmetatable(value)
  return type(meta) == 'table' and meta.__call ~= nil
end

local function is_described(component)
  return type(component) == 'table' and getmetatable(component) == nil and component.type ~= nil
end

--- Returns the thing.
---@param what { key: string, prefix: string, builtin: string[], expects: string } as resolve takes
---@param component any of the job
---@param args? table in place of the component's own arguments
---@return any
return function(what, component, args)
  if not is_described(component) then
    if type(component) == 'function' then return component() end
    return component
  end
  local make = resolve(what, component.type)
  if type(make) == 'table' and not is_callable(make) then make = make.new end
  if not is_callable(make) then
    fail('usage', what.key, ("'%s' is not a constructor; expected %s"):format(
      tostring(component.type), what.expects))
  end
  return make(args or component.args or {})
end
