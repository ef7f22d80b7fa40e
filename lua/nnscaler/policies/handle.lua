--- The graph as a policy sees it: queries, and the acts partition, replicate, assign, stage,
--- recompute and schedule. Devices, dimensions and operands count from 0.
local casts = require 'nnscaler.policies.casts'
local core = require 'nnscaler._C.plan'
local fail = require 'nnscaler.fail'
local glob = require 'nnscaler.optim.glob'
local hooks = require 'nnscaler.policies.around'
local keys = require 'nnscaler.policies.keys'
local log = require('nnscaler.log').logger 'nnscaler.policies'
local modules = require 'nnscaler.policies.module'
local nearest = require('nnscaler._C.job').nearest
local trace = require 'nnscaler.trace'

local Graph = {}
Graph.__index = Graph

---@class nnscaler.PolicyNode
---@field id integer
---@field op string "aten::linear"
---@field name string "linear"
---@field kind string "linear", "embedding", "class_loss", "sum", "attention", "experts", or "" for
---   others
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
  if (cfg.pas_config or {}).strict then self.builder:strict() end
  local zero = cfg.zero
  if zero then
    if (zero.level or 0) > 0 and cfg.plan_ngpus == cfg.runtime_ngpus then
      log.info_once('use_zero=%d: there is one scale unit, so nothing is shared out', zero.level)
    end
    self.builder:zero(self:level_of(zero.level or 0))
    self.builder:shards(zero.groups, zero.scatter or (cfg.embedded or false) and zero.level == 2,
      cfg.undivided or {})
  end
  self.list = graph:nodes()
  for _, node in ipairs(self.list) do
    node.name = node.op:match('::([%w_]+)')
  end
  self.values = graph:values()
  self.casts, self.uses = casts.find(self.list, self.values), {} -- see casts.lua
  self.beat = cfg.beat or function() end
  return self
end

---Gets all nodes in program order.
---@return nnscaler.PolicyNode[]
function Graph:nodes() return self.list end

local kSelected = { op = { 'text' }, module = { 'text' } }

---Gets the nodes for which every given field matches: `op` (name or full), `module` (pattern).
---@param what { op?: string, module?: string }
---@return nnscaler.PolicyNode[]
function Graph:select(what)
  keys.check('plan.select', 'what is selected', '', what, kSelected)
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

---Gets the paths of all modules that make calls, and of those they lie in, in order of their first
---call.
---@return string[]
function Graph:paths()
  if self.known then return self.known end
  local paths, seen = {}, {}
  for _, node in ipairs(self.list) do
    local path = node.module
    while path ~= '' do
      if not seen[path] then
        seen[path] = true
        paths[#paths + 1] = path
      end
      path = path:match('^(.*)%.[^.]*$') or ''
    end
  end
  self.known = paths
  return paths
end

---Gets the module with this path; '' is the model itself.
---@param path string
---@return nnscaler.PolicyModule
function Graph:module(path)
  if path == '' then return modules.new(self, path) end
  for _, known in ipairs(self:paths()) do
    if known == path then return modules.new(self, path) end
  end
  return fail('plan', 'plan.module', ("no module '%s' makes a call"):format(path),
    'those that do: ' .. table.concat(self:paths(), ', '))
end

---Walks the modules whose path matches, in order of their first call.
---@param pattern string path with * for any characters
---@return function iterator
function Graph:modules(pattern)
  local found, i = {}, 0
  for _, path in ipairs(self:paths()) do
    if glob.match(pattern, path) then found[#found + 1] = path end
  end
  return function()
    i = i + 1
    if found[i] then return modules.new(self, found[i]) end
  end
end

---Gets the node that follows a mark of the model (nnscaler.anchor); with `all`, those of every mark
---of that name.
---@param name string
---@param all? boolean
---@return nnscaler.PolicyNode|nnscaler.PolicyNode[]
function Graph:anchor(name, all)
  local found, names = {}, {}
  for i, anchor in ipairs(trace.anchors(self.graph)) do
    names[i] = anchor.name
    if anchor.name == name and self.list[anchor.node + 1] then
      found[#found + 1] = self.list[anchor.node + 1]
    end
  end
  if not found[1] then
    fail('plan', 'plan.anchor', ("no call follows an anchor '%s'"):format(name),
      'the model has: ' .. (names[1] and table.concat(names, ', ') or 'none'))
  end
  return all and found or found[1]
end

---Gets the parameters in module order, with the nodes that read each.
---@return { id: integer, name: string, shape: integer[], dtype: string, requires_grad: boolean,
---  consumers: nnscaler.PolicyNode[] }[]
function Graph:params()
  local out, by_id = {}, {}
  for i, value in ipairs(self.graph:parameters()) do
    value.consumers = {}
    out[i], by_id[value.id] = value, value
  end
  for _, node in ipairs(self.list) do
    local seen = {}
    for _, id in ipairs(node.inputs) do
      if by_id[id] and not seen[id] then
        seen[id] = true
        table.insert(by_id[id].consumers, node)
      end
    end
  end
  return out
end

local kPlace = { input = { 'integer', least = 0 }, dim = { 'integer' }, uneven = { 'boolean' },
  sizes = { 'table' }, in_turns = { 'boolean' }, parts = { 'integer', least = 1 } }
local kExample = 'partition(node, { input = 0, dim = 0 }, 2)'

-- As many as were named, or as there are sizes; what names no place is refused.
local function parts_of(node, where, parts)
  keys.check('plan.partition', ('the cut of %s'):format(node.op), '', where, kPlace)
  if not where.input or not where.dim then
    fail('plan', 'plan.partition', ('the cut of %s %s names no %s'):format(node.module, node.op,
      where.input and 'dim' or 'input'), kExample)
  end
  parts = parts or where.sizes and #where.sizes
  if not parts then
    fail('plan', 'plan.partition', 'neither a number of parts nor sizes', kExample)
  end
  return parts
end

-- The id of a node of this graph.
local function id_of(self, node)
  if type(node) ~= 'table' or self.list[(tonumber(node.id) or -1) + 1] ~= node then
    fail('plan', 'plan.node', ('a %s is not an operator of this graph; expected one of '
      .. 'graph:nodes()'):format(type(node)))
  end
  return node.id
end

-- Raises unless `value` is a list; returns it.
local function a_list(area, what, value)
  if type(value) ~= 'table' then
    fail('plan', area, ('%s is a %s; expected a list'):format(what, type(value)))
  end
  return value
end

---Cuts an operator along the dimension `where.dim` of its operand `where.input`, inside the parts
---of earlier calls. With `uneven`, parts may differ by one; with `sizes` they have those.
---@param node nnscaler.PolicyNode
---@param where { input: integer, dim: integer, uneven?: boolean, sizes?: integer[] }
---@param parts? integer as many as sizes
function Graph:partition(node, where, parts)
  self.beat()
  local id, count = id_of(self, node), parts_of(node, where, parts)
  casts.note(self, node, self.builder:split(id, where.input, where.dim, count),
    { parts = count, uneven = where.uneven, sizes = where.sizes })
  self.builder:partition(id, where.input, where.dim, count, where.uneven, where.sizes)
end

---Tells why `partition` would refuse, or nil. With `where.in_turns`, also why the parts could not
---run one after another on a device.
---@return string?
function Graph:refusal(node, where, parts)
  self.beat()
  local id, count = id_of(self, node), parts_of(node, where, parts)
  return self.builder:refusal(id, where.input, where.dim, count, where.uneven, where.in_turns,
    where.sizes)
end

---Tells what `partition` would do to each tensor: the dimension that it cuts, 'value' or
---'replicate'; nothing where it would refuse.
---@return { inputs: (integer|string)[], outputs: (integer|string)[] }?
function Graph:split_of(node, where, parts)
  local id, count = id_of(self, node), parts_of(node, where, parts)
  return self.builder:split(id, where.input, where.dim, count)
end

---Gets every { input, dim } that the node's annotation lets be cut.
---@return { input: integer, dim: integer }[]
function Graph:choices(node)
  local out = {}
  for i, place in ipairs(self.builder:choices(id_of(self, node))) do
    out[i] = { input = place[1], dim = place[2] }
  end
  return out
end

---Runs the whole operator on that many devices.
---@param node nnscaler.PolicyNode
---@param parts? integer all devices of its stage
function Graph:replicate(node, parts)
  local id = id_of(self, node)
  parts = parts or #self.builder:stage_devices(self.builder:stage_of(id))
  casts.note(self, node, nil, { parts = parts })
  self.builder:replicate(id, parts)
end

---Puts the parts of an operator on devices, in order.
---@param node nnscaler.PolicyNode
---@param devices integer[]
function Graph:assign(node, devices)
  self.builder:assign(id_of(self, node), a_list('plan.assign', 'devices', devices))
end

-- One text for each pipeline rank: 'F0 F1 B0 B1', 'F0:1' with the stage in front.
local function order_texts(orders)
  if type(orders) ~= 'table' or #orders == 0 then
    fail('plan', 'plan.schedule', ('orders is a %s; expected a list with the order of each '
      .. 'pipeline rank'):format(type(orders)), "orders = { 'F0 F1 B0 B1', 'F0 B0 F1 B1' }")
  end
  local out = {}
  for r, order in ipairs(orders) do
    out[r] = type(order) == 'table' and table.concat(order, ' ') or order
  end
  return out
end

local kSchedule = { name = { 'text' }, micro_batches = { 'integer', least = 1 },
  orders = { 'table' } }

---Says in which order the pipeline ranks run their stages: a predefined schedule by name, or
---{ name = 'custom', orders = …, micro_batches = n }. Without a number those of the job count.
---@param what string|{ name: string, micro_batches?: integer, orders?: (string|string[])[] }
---@param micro_batches? integer of a unit, a step
---@param chunks? integer stages a pipeline rank
function Graph:schedule(what, micro_batches, chunks)
  local orders
  if type(what) == 'table' then
    keys.check('plan.schedule', 'a schedule', '', what, kSchedule)
    if what.name == 'custom' then orders = order_texts(what.orders) end
    what, micro_batches = what.name or 'custom', what.micro_batches
  end
  self.builder:schedule(what, micro_batches or self.cfg.micro_batches or 1, chunks or 1, orders)
end
-- In a hand-written loop no backward knows that it is the last: gradients rest whole until they are
-- summed, into shards.
function Graph:level_of(zero)
  if zero ~= 2 or not self.cfg.embedded then return zero end
  log.info_once('use_zero=2 of a module inside a hand-written loop: its gradients rest in shards '
    .. 'once they are summed')
  return 1
end

local kZero = { zero = { 'integer', least = 0, most = 3 } }

---Says which states of weights rest in shards over the scale units, whatever
---compute_config.use_zero says: 'replicated' none, 'sharded' all of them; or with { zero = 0 … 3 }
---those of the weights whose names fit a pattern.
---@param home string a pattern, with `what`
---@param what? { zero: integer } 1: optimizer state; 2: gradients too; 3: weights too
function Graph:weights(home, what)
  if what ~= nil then
    keys.check('plan.weights', ("weights '%s'"):format(tostring(home)), '', what, kZero)
    local any = false
    for _, parameter in ipairs(type(home) == 'string' and self.graph:parameters() or {}) do
      if glob.match(home, parameter.name) then
        any = true
        self.builder:zero(self:level_of(what.zero or 0), parameter.name)
      end
    end
    if not any then
      fail('plan', 'plan.weights', ("no weight matches '%s'"):format(tostring(home)))
    end
    return
  end
  if home ~= 'replicated' and home ~= 'sharded' then
    local near = type(home) == 'string' and nearest(home, { 'replicated', 'sharded' })
    fail('usage', 'plan.weights', ("'%s' is not a home of weights; expected replicated or sharded")
      :format(tostring(home)), near and ("did you mean '%s'?"):format(near) or nil)
  end
  self:level(home == 'sharded' and 3 or 0)
end

-- What of all weights rests in shards, as compute_config.use_zero says it.
function Graph:level(zero) self.builder:zero(self:level_of(zero)) end

---Whether the policy has partitioned, replicated or assigned the node yet.
---@return boolean
function Graph:planned(node) return self.builder:planned(id_of(self, node)) end
function Graph:stage_of(node) return self.builder:stage_of(id_of(self, node)) end
function Graph:stage_devices(stage) return self.builder:stage_devices(stage) end

-- Ids of a list of nodes.
local function ids_of(self, nodes)
  local ids = {}
  for i, node in ipairs(a_list('plan.node', 'what is given', nodes)) do
    ids[i] = id_of(self, node)
  end
  return ids
end

---Starts a stage at each of the nodes; `devices` has one list a stage, the first stage's in front.
---@param first nnscaler.PolicyNode[]
---@param devices integer[][]
function Graph:stage(first, devices)
  for _, list in ipairs(a_list('plan.stage', 'the devices', devices)) do
    a_list('plan.stage', 'the devices of a stage', list)
  end
  self.builder:stage(ids_of(self, first), devices)
end

-- Calls f with the nodes of a list, of a module, or of each module whose path matches a pattern.
local function for_nodes(self, area, what, f)
  if type(what) ~= 'string' then
    what = a_list(area, 'what is given', what)
    return f(ids_of(self, what.nodes and what:nodes() or what))
  end
  local any = false
  for module in self:modules(what) do
    any = true
    f(ids_of(self, module:nodes()))
  end
  if not any then fail('plan', area, ("no module matches '%s'"):format(what)) end
end

---Runs nodes again in backward instead of keeping their results: those of a list, of a module, or
---of every module whose path matches a pattern (each a group of its own).
---@param what nnscaler.PolicyNode[]|nnscaler.PolicyModule|string
function Graph:recompute(what)
  for_nodes(self, 'plan.recompute', what, function(ids) self.builder:recompute(ids) end)
end

---Keeps what backward reads of the results of nodes in memory of the host: of those of a list, of a
---module, or of every module whose path matches a pattern.
---@param what nnscaler.PolicyNode[]|nnscaler.PolicyModule|string
function Graph:offload(what)
  for_nodes(self, 'plan.offload', what, function(ids) self.builder:offload(ids) end)
end

local kHooks = { before = { 'any' }, after = { 'any' }, meta = { 'text' } }

---Has functions run before and after a node, on every rank, with its local operands or results:
---f(meta, tensor…). They are named, as 'my.hooks.watch', since a plan is data. They may look at the
---tensors, but neither change nor keep them; what is run again in backward does not call them.
---@param node nnscaler.PolicyNode
---@param what { before?: string, after?: string, meta?: string }
function Graph:hook(node, what)
  local id = id_of(self, node)
  keys.check('plan.hook', ('the hooks of %s'):format(node.op), '', what, kHooks)
  for _, key in ipairs { 'before', 'after' } do
    local name = what[key]
    if name ~= nil and type(name) ~= 'string' then
      fail('plan', 'policies.hook', ('%s of %s %s is a %s; expected the name of a function'):format(
        key, node.module, node.op, type(name)), "as 'my.hooks.watch': a plan is data")
    end
    if name then hooks.find(name) end
  end
  self.builder:hooks(id, what)
end

---Gets the parameter that a value is, or is a cast of, as autocast makes them; else nil.
---@param id integer of the value
---@return table? value { id, name, role, shape, dtype, requires_grad }
function Graph:weight_of(id)
  local value = self.values[(self.casts[id] or id) + 1]
  return value and value.role == 'parameter' and value or nil
end

---Replicates every node that the policy has said nothing of over its stage's devices; casts of
---weights are cut as the nodes that read them are.
function Graph:replicate_rest()
  casts.follow(self)
  for _, node in ipairs(self.list) do
    if not self.builder:planned(node.id) then
      self.builder:replicate(node.id, #self.builder:stage_devices(self.builder:stage_of(node.id)))
    end
  end
end

function Graph:finish(name)
  local plan, zero = self.builder:finish(name), self.cfg.zero
  if zero and plan:info().zero == 0 and (zero.groups > 1 or zero.scatter or zero.undivided) then
    log.warning_once('keys zero_* of compute_config say nothing where use_zero is 0')
  end
  return plan
end

return M
