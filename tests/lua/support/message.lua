--- What a call that must fail says: its error as text.
local assert = require 'luassert'

---@param f function
---@return string
return function(f, ...)
  local ok, e = pcall(f, ...)
  assert.is_false(ok, 'an error was expected')
  return tostring(e)
end
