--- Arguments that many functions take alike: a size for each axis of an image, a reduction.
local aten = require('nnscaler.ops').aten
local fail = require 'nnscaler.fail'
local nearest = require 'nnscaler.nearest'
local sorted_keys = require('nnscaler.sorted').sorted_keys

local M = {}

--- Returns what reads the options of a function: they are nil, a table whose names are among these,
--- or a layer, whose fields they are.
---@param what string name of the function
---@param names string[]
---@return fun(options: table|nil): table
function M.reader(what, names)
  local known = {}
  for _, name in ipairs(names) do known[name] = true end
  local area = 'functional.' .. what
  return function(options)
    if options == nil then return {} end
    if type(options) == 'table' and rawget(options, '_names') then return options end -- a layer
    if type(options) ~= 'table' then
      fail('model', area, ('options are a %s; expected a table with %s'):format(
        type(options) == 'userdata' and 'tensor' or type(options), table.concat(names, ', ')))
    end
    for _, name in ipairs(sorted_keys(options)) do
      if not known[name] then
        fail('model', area, ("unknown option '%s'; expected %s"):format(tostring(name),
          table.concat(names, ', ')), nearest(name, names))
      end
    end
    return options
  end
end

local numbers = { none = 0, mean = 1, sum = 2 }

--- Returns the name of the reduction in the options, 'mean' where there is none.
---@param options? { reduction?: string }
---@param what string name of the function, for messages
---@return string
function M.reduction_name(options, what)
  local name = options and options.reduction or 'mean'
  if not numbers[name] then
    fail('model', 'functional.' .. what, ("reduction '%s'; expected none, mean or sum")
      :format(tostring(name)))
  end
  return name
end

--- The same as the number that ATen takes.
---@param options? { reduction?: string }
---@param what string
---@return integer
function M.reduction(options, what) return numbers[M.reduction_name(options, what)] end

--- Takes mean or sum of a loss, or leaves it as the options say.
---@param loss nnscaler.Tensor
---@param options? { reduction?: string }
---@param what string
---@return nnscaler.Tensor
function M.reduce(loss, options, what)
  local how = M.reduction_name(options, what)
  if how == 'none' then return loss end
  return how == 'mean' and aten.mean(loss) or aten.sum(loss)
end

--- One number for each of n axes; a list stays as it is.
---@param value integer|integer[]
---@param n integer
---@return integer[]
function M.spread(value, n)
  if type(value) ~= 'number' then return value end
  local list = {}
  for i = 1, n do list[i] = value end
  return list
end

--- Refuses a choice that is not among those allowed.
---@param what string name of the function
---@param name string of the argument
---@param value any
---@param allowed string[]
---@return string
function M.choice(what, name, value, allowed)
  for _, one in ipairs(allowed) do
    if value == one then return value end
  end
  return fail('model', 'functional.' .. what, ("%s '%s'; expected %s"):format(name,
    tostring(value), table.concat(allowed, ', ')))
end

return M
