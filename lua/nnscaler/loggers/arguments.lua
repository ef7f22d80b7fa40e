--- Checks the arguments of a logger: texts by name.
local fail = require 'nnscaler.fail'
local nearest = require 'nnscaler.nearest'
local sorted = require 'nnscaler.sorted'

--- Raises for a key that the logger has not, a value that is no text, and a missing one.
---@param area string
---@param args table
---@param known table<string, string> name → what it is, in words
---@param required string
return function(area, args, known, required)
  local names = sorted.sorted_keys(known)
  for _, key in ipairs(sorted.sorted_keys(args)) do
    if not known[key] then
      fail('usage', area, ("unknown key '%s'; expected %s"):format(tostring(key),
        table.concat(names, ', ')), nearest(key, names))
    elseif type(args[key]) ~= 'string' then
      fail('usage', area, ('%s is a %s; expected %s'):format(key, type(args[key]), known[key]))
    end
  end
  if not args[required] then
    fail('usage', area, ('%s is missing; expected %s'):format(required, known[required]))
  end
end
