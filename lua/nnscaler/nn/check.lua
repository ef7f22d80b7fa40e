--- Checks of constructor arguments, so that a wrong one is named where it was written.
local fail = require 'nnscaler.fail'
local nearest = require 'nnscaler.nearest'
local sorted = require 'nnscaler.sorted'

local M = {}

--- Returns `value` if it is an integer of at least `least`.
---@param area string
---@param name string of the argument
---@param value any
---@param least? integer 1 by default; -math.huge: any
---@return integer
function M.integer(area, name, value, least)
  least = least or 1
  if type(value) ~= 'number' or value % 1 ~= 0 or value < least then
    fail('usage', area, ('%s = %s; expected an integer%s'):format(name, tostring(value),
      least > -math.huge and (' ≥ %d'):format(least) or ''))
  end
  return value
end

--- Returns `value` if it is a probability.
---@param area string
---@param value any
---@return number
function M.probability(area, value)
  if type(value) ~= 'number' or not (value >= 0 and value <= 1) then
    fail('usage', area, ('probability %s; expected 0 to 1'):format(tostring(value)))
  end
  return value
end

--- Returns `value` if it is a number (not NaN) of at least `least`, if that is given; `default`
--- where it is nil.
---@param area string
---@param name string of the argument
---@param value any
---@param default? number
---@param least? number
---@return number
function M.number(area, name, value, default, least)
  if value == nil then value = default end
  if type(value) ~= 'number' or value ~= value or least and value < least then
    fail('usage', area, ('%s = %s; expected a number%s'):format(name, tostring(value),
      least and (' ≥ %g'):format(least) or ''))
  end
  return value
end

--- Returns the row that an index names, negative ones from the end.
---@param area string
---@param value any padding_idx
---@param rows integer
---@return integer
function M.row(area, value, rows)
  M.integer(area, 'padding_idx', value, -math.huge)
  if value < -rows or value >= rows then
    fail('usage', area, ('padding_idx = %d; the table has %d rows'):format(value, rows))
  end
  return value % rows
end

--- Returns n sizes: one number stands for all.
---@param area string
---@param name string
---@param value any
---@param n integer
---@param least? integer
---@return integer[]
function M.each(area, name, value, n, least)
  local list = {}
  if type(value) == 'table' and #value ~= n then
    fail('usage', area, ('%s has %d sizes; expected %d%s'):format(name, #value, n,
      n > 1 and ', or one number' or ''))
  end
  for i = 1, n do
    list[i] = M.integer(area, name, type(value) == 'table' and value[i] or value, least)
  end
  return list
end

--- Returns a list of sizes: one number stands for a list of one.
---@param area string
---@param name string
---@param value any
---@return integer[]
function M.sizes(area, name, value)
  if type(value) ~= 'table' then value = { value } end
  local list = {}
  for i, size in ipairs(value) do list[i] = M.integer(area, name, size) end
  if #list == 0 then fail('usage', area, name .. ' is empty; expected at least one size') end
  return list
end

--- Returns the options with defaults filled in; an unknown name is an error. A default of
--- `check.none` means that the option may stay nil.
---@param area string
---@param given table|nil
---@param defaults table<string, any>
---@return table
function M.options(area, given, defaults)
  local result = {}
  for name, value in sorted.sorted_pairs(defaults) do
    if value ~= M.none then result[name] = value end
  end
  if given == nil then return result end
  if type(given) ~= 'table' then
    fail('usage', area, ('options are a %s; expected a table'):format(type(given)))
  end
  for name, value in sorted.sorted_pairs(given) do
    if defaults[name] == nil then
      fail('usage', area, ("unknown option '%s'; expected %s"):format(tostring(name),
        table.concat(sorted.sorted_keys(defaults), ', ')),
        nearest(name, sorted.sorted_keys(defaults)))
    end
    result[name] = value
  end
  return result
end

M.none = setmetatable({}, { __tostring = function() return 'none' end })

--- Returns `value` if `allowed` holds it.
---@param area string
---@param name string
---@param value any
---@param allowed string[]
---@return string
function M.one_of(area, name, value, allowed)
  for _, choice in ipairs(allowed) do
    if value == choice then return value end
  end
  return fail('usage', area, ("%s = '%s'; expected %s"):format(name, tostring(value),
    table.concat(allowed, ', ')))
end

return M
