--- The graph as a policy sees it: queries, and the acts partition, replicate, assign, stage,
--- recompute and schedule. Devices, dimensions and operands count from 0.
local core = require 'nnscaler._C.plan'
local glob = require 'nnscaler.optim.glob'

local Graph = {}
Graph.__index = Graph

---@class nnscaler.PolicyNode
---@field id integer
---@field op string "aten::linear"
---@field name string "linear"
---@field module string path of the module that made the call
---@field inputs integer[] value ids
---@field outputs integer[] value ids

local M = {}

---@param graph userdata nnscaler.Graph
---@param cfg nnscaler.PolicyConfig
---@return table handle
function M.new(graph, cfg)
  local self = setmetatable({ graph = graph, cfg = cfg }, Graph)
  self.builder = core.builder(graph, cfg.plan_ngpus, cfg.runtime_ngpus)
  self.list = graph:nodes()
  for _, node in ipairs(self.list) do
    node.name = node.op:match('::([%w_]+)')
  end
  self.values = graph:values()
  return self
end

---Gets all nodes in program order.
---@return nnscaler.PolicyNode[]
function Graph:nodes() return self.list end

---Gets the nodes for which every given field matches: `op` (name or full), `module` (pattern).
---@param what { op?: string, module?: string }
---@return nnscaler.PolicyNode[]
function Graph:select(what)
  local out = {}
  for _, node in ipairs(self.list) do
    local ok = not what.op or node.name == what.op or node.op == what.op
    ok = ok and (not what.module or glob.match(what.module, node.module))
    if ok then out[#out + 1] = node end
  end
  return out
end

---Gets the nodes that read an output of `node`.
---@param node nnscaler.PolicyNode
---@return nnscaler.PolicyNode[]
function Graph:consumers(node)
  local made, out = {}, {}
  for _, id in ipairs(node.outputs) do made[id] = true end
  for _, other in ipairs(self.list) do
    for _, id in ipairs(other.inputs) do
      if made[id] then
        out[#out + 1] = other
        break
      end
    end
  end
  return out
end

---Gets the nodes whose outputs `node` reads.
---@param node nnscaler.PolicyNode
---@return nnscaler.PolicyNode[]
function Graph:producers(node)
  local out, seen = {}, {}
  for _, id in ipairs(node.inputs) do
    local producer = self.values[id + 1].producer
    if producer and not seen[producer] then
      seen[producer] = true
      out[#out + 1] = self.list[producer + 1]
    end
  end
  return out
end

local Module = {}
Module.__index = Module

---Gets the first node of the module, or of its child `child`.
---@param child? string
---@return nnscaler.PolicyNode
function Module:op(child)
  local path = child and (self.path .. '.' .. child) or self.path
  local found = self.graph:select { module = path }
  return found[1] or error(('module %s makes no call'):format(path), 2)
end

---Walks the modules whose path matches, in order of their first call.
---@param pattern string path with * for any characters
---@return function iterator
function Graph:modules(pattern)
  local paths, seen = {}, {}
  for _, node in ipairs(self.list) do
    local path = node.module
    while path ~= '' do
      if not seen[path] then
        seen[path] = true
        if glob.match(pattern, path) then paths[#paths + 1] = path end
      end
      path = path:match('^(.*)%.[^.]*$') or ''
    end
  end
  local i = 0
  return function()
    i = i + 1
    if paths[i] then return setmetatable({ path = paths[i], graph = self }, Module) end
  end
end

---Cuts an operator along the dimension `where.dim` of its operand `where.input`.
---@param node nnscaler.PolicyNode
---@param where { input: integer, dim: integer }
---@param parts integer
function Graph:partition(node, where, parts)
  self.builder:partition(node.id, where.input, where.dim, parts)
end

---Tells why `partition` would refuse, or nil.
---@return string?
function Graph:refusal(node, where, parts)
  return self.builder:refusal(node.id, where.input, where.dim, parts)
end

---Gets every { input, dim } that the node's annotation lets be cut.
---@return { input: integer, dim: integer }[]
function Graph:choices(node)
  local out = {}
  for i, place in ipairs(self.builder:choices(node.id)) do
    out[i] = { input = place[1], dim = place[2] }
  end
  return out
end

function Graph:replicate(node, parts) self.builder:replicate(node.id, parts) end
function Graph:assign(node, devices) self.builder:assign(node.id, devices) end
function Graph:schedule(name, micro_batches, chunks)
  self.builder:schedule(name, micro_batches, chunks or 1)
end
function Graph:weights(home) self.builder:weights(home) end
function Graph:stage_of(node) return self.builder:stage_of(node.id) end
function Graph:stage_devices(stage) return self.builder:stage_devices(stage) end

---Starts a stage at each of the nodes; `devices` has one list a stage, the first stage's in front.
---@param first nnscaler.PolicyNode[]
---@param devices integer[][]
function Graph:stage(first, devices)
  local ids = {}
  for i, node in ipairs(first) do ids[i] = node.id end
  self.builder:stage(ids, devices)
end

---Runs the nodes again in backward instead of keeping their results.
---@param nodes nnscaler.PolicyNode[]
function Graph:recompute(nodes)
  local ids = {}
  for i, node in ipairs(nodes) do ids[i] = node.id end
  self.builder:recompute(ids)
end

---Replicates every node that the policy has said nothing of over its stage's devices.
function Graph:replicate_rest()
  for _, node in ipairs(self.list) do
    if not self.builder:planned(node.id) then
      self.builder:replicate(node.id, #self.builder:stage_devices(self.builder:stage_of(node.id)))
    end
  end
end

function Graph:finish(name) return self.builder:finish(name) end

return M
