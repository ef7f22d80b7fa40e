--- A module of the model as a policy sees it: its calls, its children, its parameters.
local fail = require 'nnscaler.fail'

local Module = {}
Module.__index = Module

local M = {}

---@class nnscaler.PolicyModule
---@field path string

--- Whether `path` is `root` or lies below it; the root of the model is ''.
---@param root string
---@param path string
---@return boolean
function M.holds(root, path)
  return root == '' or path == root or path:sub(1, #root + 1) == root .. '.'
end

---@param graph table the policy's graph
---@param path string
---@return nnscaler.PolicyModule
function M.new(graph, path) return setmetatable({ graph = graph, path = path }, Module) end

--- Gets all nodes of the module and its children, in program order.
---@return nnscaler.PolicyNode[]
function Module:nodes()
  local out = {}
  for _, node in ipairs(self.graph:nodes()) do
    if M.holds(self.path, node.module) then out[#out + 1] = node end
  end
  return out
end

--- Gets the first node of the module itself, or of its child `child`.
---@param child? string
---@return nnscaler.PolicyNode
function Module:op(child)
  local path = child and (self.path .. '.' .. child) or self.path
  local found = self.graph:select { module = path }
  if not found[1] then
    fail('plan', 'plan.module', ("module '%s' makes no call of its own"):format(path))
  end
  return found[1]
end

--- Gets a child.
---@param name string 'mlp', 'attn.c_proj'
---@return nnscaler.PolicyModule
function Module:child(name)
  return self.graph:module(self.path == '' and name or self.path .. '.' .. name)
end

--- Gets the parameters whose names lie below the module's path.
---@return table[] values { id, name, shape, dtype, requires_grad }
function Module:params()
  local out = {}
  for _, value in ipairs(self.graph:params()) do
    if M.holds(self.path, value.name) then out[#out + 1] = value end
  end
  return out
end

return M
