--- The one way to raise an error from Lua: `fail(kind, area, message, hint)`. The error value is
--- the table that C++ errors have too: message, kind, hint, traceback; tostring gives the text.

-- Shared with the C++ side, so that both print and cross the boundary alike.
local Error = debug.getregistry()['nnscaler.Error']

local kinds = {
  usage = true, model = true, plan = true, data = true, communication = true, state = true,
  internal = true,
}

--- Raises an error of ours: `[area] message`, with an optional hint that says what to change.
---@param kind 'usage'|'model'|'plan'|'data'|'communication'|'state'|'internal' who can mend it
---@param area string 'folder.operation', as in 'trainer.step'
---@param message string what is wrong: value; expected …
---@param hint? string what the user can do
local function fail(kind, area, message, hint)
  if not kinds[kind] then error(("no error kind '%s'"):format(tostring(kind)), 2) end
  error(setmetatable({
    kind = kind,
    message = ('[%s] %s'):format(area, message),
    hint = hint,
    traceback = (debug.traceback('', 2):gsub('^\n', '')),
  }, Error), 0)
end

return fail
