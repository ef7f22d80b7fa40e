--- Arguments of the functions that make modules parallel: tables with known keys, and arguments of
--- forward by name.
local fail = require 'nnscaler.fail'
local sorted = require 'nnscaler.sorted'

local M = {}

--- Checks the keys and types of a table of options.
---@param name string of the table, for messages
---@param given any
---@param known table<string, string> key → type, or 'any'
---@return table given
function M.table(name, given, known)
  if type(given) ~= 'table' then
    fail('usage', 'library.' .. name, ('%s is a %s; expected a table'):format(name, type(given)))
  end
  for key, value in sorted.sorted_pairs(given) do
    local expected = known[key]
    if not expected then
      fail('usage', 'library.' .. name, ("%s has the key '%s'; expected %s"):format(name,
        tostring(key), table.concat(sorted.sorted_keys(known), ', ')))
    end
    if expected ~= 'any' and type(value) ~= expected then
      fail('usage', 'library.' .. name, ('%s.%s is a %s; expected a %s'):format(name, key,
        type(value), expected))
    end
  end
  return given
end

--- Names of forward's arguments: what the class says, else those that its source has.
---@param module nnscaler.nn.Module
---@return string[]
function M.names(module)
  if module.forward_arg_names then return module.forward_arg_names end
  local names = {}
  for i = 2, 250 do -- the first is self
    local name = debug.getlocal(module.forward, i)
    if not name then break end
    names[i - 1] = name
  end
  return names
end

local function check_end2end(module, names, args)
  if args.n == 1 and args[1] ~= nil then return end
  fail('usage', 'library.end2end', ('dummy_args gives %d arguments of %s.forward; an end-to-end '
    .. "module takes one sample, '%s'"):format(args.n, module.class_name, names[1] or '?'),
    'put all data into one table; other arguments of forward keep their defaults (nil)')
end

--- Arguments of forward in their order.
---@param module nnscaler.nn.Module
---@param names string[]
---@param given any a list, or a table by name
---@param end2end boolean|nil
---@return table args `n` counts them
function M.list(module, names, given, end2end)
  if type(given) ~= 'table' then
    fail('usage', 'library.dummy_args', ('dummy_args is a %s; expected arguments of forward by '
      .. 'name'):format(type(given)))
  end
  local place = {}
  for i, name in ipairs(names) do place[name] = i end
  local args = { n = not place.n and given.n or #given }
  for i = 1, args.n do args[i] = given[i] end
  for key, value in sorted.sorted_pairs(given) do
    if type(key) == 'string' and (key ~= 'n' or place.n) then
      local i = place[key]
      if not i then
        fail('usage', 'library.dummy_args', ("dummy_args has '%s', which is not an argument of "
          .. '%s.forward; expected %s'):format(key, module.class_name, #names > 0
          and table.concat(names, ', ') or 'a list, as forward names none'))
      end
      args[i], args.n = value, math.max(args.n, i)
    end
  end
  if end2end then check_end2end(module, names, args) end
  return args
end

return M
