--- Modules that hold other modules.
local Module = require 'nnscaler.nn.module'
local fail = require 'nnscaler.fail'
local kinds = require 'nnscaler.nn.kinds'

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
