--- Raises the project's error: `[area.op] what is wrong: value; expected …` with a kind and a hint.
--- Kinds: usage (exit code 2), model, plan, data, communication, state, internal (exit code 1).
local kinds = {
  usage = true, model = true, plan = true, data = true, communication = true, state = true,
  internal = true,
}

local Error = {}
Error.__index = Error
Error.__name = 'nnscaler.Error'

function Error:__tostring()
  if self.hint and self.hint ~= '' then return self.message .. '\nhint: ' .. self.hint end
  return self.message
end

---@param kind string one of the kinds above
---@param area string where it went wrong, as 'optim.step'
---@param message string what is wrong, the value, what was expected
---@param hint? string what the person can change
return function(kind, area, message, hint)
  if not kinds[kind] then error('unknown error kind: ' .. tostring(kind), 2) end
  error(setmetatable({ kind = kind, message = '[' .. area .. '] ' .. message, hint = hint }, Error), 0)
end
