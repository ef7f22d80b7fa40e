--- The list form of a policy: it returns a list with one entry for each operator, and this turns
--- the entries into calls of the graph's acts.
---
---   { node = n, partition = { input = 0, dim = 0, parts = 2 } }   parts: all devices of the stage
---   { node = n, partition = { { input = 0, dim = 0, parts = 2 }, { input = 1, dim = 0, parts = 2 }
---     }, devices = { 0, 1, 2, 3 }, stage = 0, recompute = 'layer 0' }
---   { node = n, pre_hook = 'my.hooks.watch', post_hook = …, hook_meta = 'text' }
---   { node = n }                                                  replicated
---
--- Stages ascend in program order; operators with one `recompute` name are one group.
local fail = require 'nnscaler.fail'
local nearest = require('nnscaler._C.job').nearest
local sorted_keys = require('nnscaler.sorted').sorted_keys

local M = {}

-- What an entry may hold; of which type, where another would be a Lua error. `graph:hook` checks
-- hooks itself.
local known = { node = 'table', partition = 'table', devices = 'table', stage = 'number',
  recompute = true, stage_devices = 'table', pre_hook = true, post_hook = true,
  hook_meta = 'string' }

local function refuse(message, hint) fail('plan', 'policies.list', message, hint) end

-- The entries by node id; each operator has exactly one.
local function by_node(graph, entries)
  if type(entries) ~= 'table' then
    refuse(('the policy returned a %s; expected nothing, or a list of entries')
      :format(type(entries)))
  end
  local of = {}
  for i, entry in ipairs(entries) do
    local node = type(entry) == 'table' and entry.node
    if type(node) ~= 'table' or graph:nodes()[(node.id or -1) + 1] ~= node then
      refuse(('entry %d names no operator'):format(i), 'set node = one of graph:nodes()')
    end
    for _, key in ipairs(sorted_keys(entry)) do
      if not known[key] then
        local near = type(key) == 'string' and nearest(key, sorted_keys(known))
        refuse(("entry %d (%s %s): unknown key '%s'"):format(i, node.module, node.op,
          tostring(key)), near and ("did you mean '%s'?"):format(near)
          or 'keys are ' .. table.concat(sorted_keys(known), ', '))
      end
      if known[key] ~= true and type(entry[key]) ~= known[key] then
        refuse(("entry %d (%s %s): '%s' is a %s; expected a %s"):format(i, node.module, node.op,
          key, type(entry[key]), known[key]))
      end
    end
    if of[node.id] then refuse(('%s %s has two entries'):format(node.module, node.op)) end
    of[node.id] = entry
  end
  for _, node in ipairs(graph:nodes()) do
    if not of[node.id] then
      refuse(('%s %s#%d has no entry'):format(node.module, node.op, node.ordinal),
        'a list has one entry for each operator; { node = n } replicates it')
    end
  end
  return of
end

-- Starts stages where the number changes. A stage's devices are those that any of its entries names
-- as `stage_devices`; without any, the plan's devices are shared out evenly.
local function set_stages(graph, of)
  local first, devices, last = {}, {}, 0
  for _, node in ipairs(graph:nodes()) do
    local entry = of[node.id]
    local stage = entry.stage or 0
    if stage ~= last then
      if stage ~= last + 1 or node.id == 0 then
        refuse(('%s %s#%d is in stage %s after stage %d; expected ascending stages in program '
          .. 'order'):format(node.module, node.op, node.ordinal, tostring(stage), last))
      end
      first[#first + 1], last = node, stage
    end
    devices[stage + 1] = devices[stage + 1] or entry.stage_devices
  end
  if last == 0 then return end
  local each = graph.cfg.plan_ngpus / (last + 1)
  for s = 0, last do
    if not devices[s + 1] then
      if each % 1 ~= 0 then
        refuse(('%d stages on plan_ngpus = %d devices'):format(last + 1, graph.cfg.plan_ngpus),
          'say which with stage_devices')
      end
      devices[s + 1] = {}
      for i = 1, each do devices[s + 1][i] = s * each + i - 1 end
    end
  end
  graph:stage(first, devices)
end

local function set_recompute(graph, of)
  local groups, names = {}, {}
  for _, node in ipairs(graph:nodes()) do
    local name = of[node.id].recompute
    if name ~= nil then
      if not groups[name] then
        groups[name] = {}
        names[#names + 1] = name
      end
      table.insert(groups[name], node)
    end
  end
  for _, name in ipairs(names) do graph:recompute(groups[name]) end
end

---Applies a list of entries.
---@param graph table the policy's graph
---@param entries table[]
function M.apply(graph, entries)
  local of = by_node(graph, entries)
  set_stages(graph, of)
  for _, node in ipairs(graph:nodes()) do
    local entry = of[node.id]
    local count = #graph:stage_devices(graph:stage_of(node))
    local steps = entry.partition
    if type(steps) == 'table' and #steps == 0 then steps = { steps } end
    for _, step in ipairs(steps or {}) do
      graph:partition(node, step, step.parts or not step.sizes and count or nil)
    end
    if not steps then graph:replicate(node, entry.devices and #entry.devices or count) end
    if entry.devices then graph:assign(node, entry.devices) end
    if entry.pre_hook or entry.post_hook then
      graph:hook(node, { before = entry.pre_hook, after = entry.post_hook, meta = entry.hook_meta })
    end
  end
  set_recompute(graph, of)
end

return M
