--- Parameters that a recipe declares for its command line:
---   local p = nnscaler.params { layers = { 4, 'number of blocks', min = 1 } }
--- `layers=6` sets one; `nnscaler run recipe.lua --help` lists them.

local core = require 'nnscaler._C.job'
local fail = require 'nnscaler.fail'
local sorted = require 'nnscaler.sorted'

local M = {}

---@class nnscaler.params.Context
---@field overrides string[] `key=value` texts of the command line
---@field declared { name: string, default: any, value: any, help: string }[]
---@field used table<integer, boolean> overrides that set a parameter

-- The evaluation that is going on; outside of one, parameters have their defaults.
local current = { overrides = {}, declared = {}, used = {} }

local Error = debug.getregistry()['nnscaler.Error']

local function with_traceback(err)
  if type(err) ~= 'table' then
    err = setmetatable({ kind = 'model', message = tostring(err) }, Error)
  end
  if not err.traceback then err.traceback = debug.traceback('', 2):gsub('^\n', '') end
  return err
end

--- Runs `f` with these overrides at hand for the parameters that it declares.
---@param overrides string[]
---@param f fun(): any
---@return boolean ok, any result_or_error, nnscaler.params.Context
function M.during(overrides, f)
  local before = current
  local context = { overrides = overrides, declared = {}, used = {} }
  current = context
  local ok, result = xpcall(f, with_traceback)
  current = before
  return ok, result, context
end

--- Sets the overrides for the rest of the process: a script's arguments.
---@param overrides string[]
function M.start(overrides) current = { overrides = overrides, declared = {}, used = {} } end

local function spell(value)
  return type(value) == 'string' and ("the text '%s'"):format(value) or tostring(value)
end

-- The value that an override gives to a parameter, checked against its declaration.
local function take(name, spec, change, text)
  local function refuse(expected)
    fail('usage', 'params.value', ("command line, %s: '%s' is %s; expected %s"):format(
      text, name, spell(change.value), expected), spec[2])
  end
  local kind = spec.type or type(spec[1])
  local value = change.value
  if kind == 'string' and change.spelling then value = change.spelling end
  if kind ~= 'nil' and type(value) ~= kind then
    refuse(kind == 'boolean' and 'true or false' or kind == 'table' and 'a list as [1, 2]'
      or 'a ' .. kind)
  end
  if spec.min and value < spec.min then refuse('at least ' .. spec.min) end
  if spec.choices then
    local found = false
    for _, choice in ipairs(spec.choices) do found = found or choice == value end
    if not found then refuse('one of ' .. table.concat(spec.choices, ', ')) end
  end
  return value
end

local function declare(name, spec)
  if type(name) ~= 'string' or not name:find('^[%a_][%w_]*$') then
    fail('usage', 'params.declare', ("a parameter is called '%s'; expected a name"):format(
      tostring(name)))
  end
  if type(spec) ~= 'table' then
    fail('usage', 'params.declare', ("parameter '%s' is a %s"):format(name, type(spec)),
      ("write %s = { default, 'help' }"):format(name))
  end
  for _, key in ipairs(core.keys()) do
    if key.path == name then
      fail('usage', 'params.declare', ("parameter '%s' has the name of a configuration key")
        :format(name), 'the key itself can be set on the command line; drop the parameter')
    end
  end
  for _, other in ipairs(current.declared) do
    if other.name == name then
      fail('usage', 'params.declare', ("parameter '%s' is declared twice"):format(name))
    end
  end
  local value = spec[1]
  for i, text in ipairs(current.overrides) do
    local change = core.parse_override(text)
    if change.path == name then
      current.used[i] = true
      if change.remove then value = spec[1] else value = take(name, spec, change, text) end
    end
  end
  table.insert(current.declared, {
    name = name, default = spec[1], value = value, help = spec[2] or '', choices = spec.choices,
  })
  return value
end

--- Declares parameters; returns their values. Reading one that is not declared is an error.
---@param specs table<string, table> name → { default, help, choices = {…}?, min = …?, type = …? }
---@return table<string, any>
function M.declare(specs)
  local values, known = {}, {}
  for name, spec in sorted.sorted_pairs(specs) do
    values[name] = declare(name, spec)
    known[name] = true
  end
  return setmetatable(values, {
    __index = function(_, name)
      if known[name] then return nil end
      error(("no parameter '%s' is declared"):format(tostring(name)), 2)
    end,
  })
end

--- Describes the parameters that were declared, one per line.
---@param context nnscaler.params.Context
---@return string
function M.describe(context)
  local lines = {}
  local width = 0
  for _, p in ipairs(context.declared) do
    width = math.max(width, #p.name + 1 + #tostring(p.value))
  end
  for _, p in ipairs(context.declared) do
    local setting = p.name .. '=' .. (p.value == nil and '' or tostring(p.value))
    lines[#lines + 1] = ('  %s  %s%s'):format(setting .. (' '):rep(width - #setting), p.help,
      p.choices and (' (%s)'):format(table.concat(p.choices, ', ')) or '')
  end
  return table.concat(lines, '\n')
end

return M
