--- Modules that hold other modules, or parameters, in lists and under names.
local Module = require 'nnscaler.nn.module'
local fail = require 'nnscaler.fail'
local kinds = require 'nnscaler.nn.kinds'
local sorted = require 'nnscaler.sorted'

local M = {}

local function check_module(area, i, value)
  if kinds.of(value) ~= 'module' then
    fail('usage', area, ('entry %d is a %s; expected a module'):format(i, type(value)))
  end
  return value
end

--- Modules in a list, called by whoever holds it. `ipairs` walks over them; the list counts from 1,
--- the names of what it holds from 0.
---@class nnscaler.nn.ModuleList : nnscaler.nn.Module
M.ModuleList = Module.class 'ModuleList'

---@param modules? nnscaler.nn.Module[]
function M.ModuleList:init(modules)
  for _, module in ipairs(modules or {}) do self:append(module) end
end

---@param module nnscaler.nn.Module
---@return nnscaler.nn.ModuleList self
function M.ModuleList:append(module)
  local i = self:count() + 1
  self[i] = check_module('nn.' .. self.class_name, i, module)
  return self
end

---@return integer
function M.ModuleList:count()
  local n = 0
  while rawget(self, n + 1) do n = n + 1 end
  return n
end

--- Modules under names: assign them to its fields.
---@class nnscaler.nn.ModuleDict : nnscaler.nn.Module
M.ModuleDict = Module.class 'ModuleDict'

--- Parameters in a list, used by whoever holds it; names count from 0.
---@class nnscaler.nn.ParameterList : nnscaler.nn.Module
M.ParameterList = Module.class 'ParameterList'

---@param parameters? nnscaler.Tensor[] as nn.Parameter makes them
function M.ParameterList:init(parameters)
  for _, parameter in ipairs(parameters or {}) do self:append(parameter) end
end

local function check_parameter(area, what, value)
  if kinds.of(value) ~= 'parameter' then
    fail('usage', area, ('%s is a %s; expected a parameter'):format(what,
      kinds.of(value) or type(value)), 'nn.Parameter { shape =, init = } makes one')
  end
  return value
end

---@param parameter nnscaler.Tensor
---@return nnscaler.nn.ParameterList self
function M.ParameterList:append(parameter)
  local i = self:count() + 1
  self[i] = check_parameter('nn.ParameterList', 'entry ' .. i, parameter)
  return self
end

---@return integer
function M.ParameterList:count() return M.ModuleList.count(self) end

--- Parameters under names: fields of it, in the order in which they were assigned; those of the
--- table given to the constructor in the order of their names.
---@class nnscaler.nn.ParameterDict : nnscaler.nn.Module
M.ParameterDict = Module.class 'ParameterDict'

---@param parameters? table<string, nnscaler.Tensor>
function M.ParameterDict:init(parameters)
  for name, parameter in sorted.sorted_pairs(parameters or {}) do
    self[name] = check_parameter('nn.ParameterDict', ("'%s'"):format(tostring(name)), parameter)
  end
end

--- Modules one after the other: each takes what the one before returned.
---@class nnscaler.nn.Sequential : nnscaler.nn.ModuleList
M.Sequential = Module.class('Sequential', M.ModuleList)

---@param ... nnscaler.nn.Module the modules, or one list of them
function M.Sequential:init(...)
  local modules = { ... }
  if #modules == 1 and kinds.of(modules[1]) == nil then modules = modules[1] end
  M.ModuleList.init(self, modules)
end

---@param ... any arguments of the first module
---@return any
function M.Sequential:forward(...)
  if not rawget(self, 1) then return ... end
  local x = self[1](...)
  for i = 2, self:count() do x = self[i](x) end
  return x
end

return M
