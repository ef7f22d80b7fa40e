--- Modules of a model by depth, and what they take: of the whole model on one device, and of a
--- stage of a plan. Modules that repeat under numbers of a list are one row.
local format = require 'nnscaler.format'
local plans = require 'nnscaler._C.plan'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local units = require 'nnscaler.units'

local M = {}

local kLargest = 3 -- rows of a depth

local width = { float64 = 8, float32 = 4, bfloat16 = 2, float16 = 2, int64 = 8, int32 = 4,
  int16 = 2, int8 = 1, uint8 = 1, bool = 1 }

--- Bytes of a value of a graph.
---@param value table
---@return number
function M.bytes_of(value)
  local n = width[value.dtype] or 4
  for _, size in ipairs(value.shape) do n = n * size end
  return n
end

--- A path with the numbers of lists as '*'.
---@param path string
---@return string
function M.folded(path) return (('.' .. path):gsub('%.%d+', '.*'):sub(2)) end

--- Sorts rows, largest first; those of equal size by name.
---@param rows table[]
---@param key string
---@return table[] rows
function M.by_size(rows, key)
  table.sort(rows, function(a, b)
    if a[key] ~= b[key] then return a[key] > b[key] end
    return a.name < b.name
  end)
  return rows
end

-- Of each node, by its place in the graph: bytes of weights and buffers that it reads first,
-- seconds of its forward, bytes of its results that have a gradient.
local function figures(e)
  local values, seen, forward, out = e.graph:values(), {}, {}, {}
  for _, spent in ipairs(e.whole.ranks[1].spent) do
    forward[spent.node] = (forward[spent.node] or 0) + spent.forward
  end
  for i, node in ipairs(e.graph:nodes()) do
    local row = { param_mem = 0, buffer_mem = 0, train_mem = 0, fw_span = forward[node.id] or 0 }
    for _, id in ipairs(node.inputs) do
      local value = values[id + 1]
      local kind = value.role == 'parameter' and 'param_mem'
        or value.role == 'buffer' and 'buffer_mem'
      if kind and not seen[id] then
        seen[id] = true
        row[kind] = row[kind] + M.bytes_of(value)
      end
    end
    for _, id in ipairs(node.outputs) do
      local value = values[id + 1]
      if value and value.requires_grad then row.train_mem = row.train_mem + M.bytes_of(value) end
    end
    out[i] = row
  end
  return out
end

-- Modules, and below the last one single calls, of each depth: the sums of the figures of nodes,
-- those without figures left out.
local function depths_of(nodes, rows, keys)
  local depths = {}
  for i, node in ipairs(nodes) do
    local parts = {}
    for part in node.module:gmatch '[^.]+' do parts[#parts + 1] = part end
    for depth = 1, rows[i] and #parts + 1 or 0 do
      local path = depth <= #parts and table.concat(parts, '.', 1, depth) or nil
      local name = path and M.folded(path) or node.op
      depths[depth] = depths[depth] or {}
      local sum = depths[depth][name]
      if not sum then
        sum = { name = name, instances = {}, count = 0 }
        depths[depth][name] = sum
      end
      local instance = path or i
      if not sum.instances[instance] then
        sum.instances[instance], sum.count = true, sum.count + 1
      end
      for _, key in ipairs(keys) do sum[key] = (sum[key] or 0) + rows[i][key] end
    end
  end
  for depth, sums in ipairs(depths) do
    local list = {}
    for _, sum in sorted_pairs(sums) do list[#list + 1] = sum end
    depths[depth] = list
  end
  return depths
end

-- The largest rows of a depth, in words.
local function largest(rows, key, text_of)
  M.by_size(rows, key)
  local text = {}
  for i = 1, math.min(kLargest, #rows) do
    local row = rows[i]
    if row[key] > 0 then
      text[#text + 1] = ('%s%s %s'):format(row.name,
        row.count > 1 and (' x %d'):format(row.count) or '', text_of(row[key]))
    end
  end
  return #text > 0 and table.concat(text, ', ') or 'none'
end

--- The table of the whole model.
---@param e nnscaler.Explained
---@param add fun(text: string, ...: any)
function M.whole(e, add)
  add 'modules, on one device, of a micro-batch: param_mem weights, fw_span forward, train_mem'
  add '  results that have a gradient, buffer_mem buffers; the largest three, x n: all of a list'
  local keys = { 'param_mem', 'fw_span', 'train_mem', 'buffer_mem' }
  for depth, rows in ipairs(depths_of(e.graph:nodes(), figures(e), keys)) do
    add('depth %d', depth)
    for _, key in ipairs(keys) do
      add('    %-10s - %s', key, largest(rows, key, key == 'fw_span' and format.seconds
        or units.bytes))
    end
  end
end

-- Bytes of a node's results that have a gradient, on one device under the plan.
local function results_of(e, builder, node)
  local values, bytes = e.graph:values(), 0
  for at, id in ipairs(node.outputs) do
    local value = values[id + 1]
    local own = value and value.requires_grad and M.bytes_of(value) or 0
    for _, cut in ipairs(own > 0 and e.planned[node.id + 1].steps or {}) do
      local split = cut.input >= 0 and builder:split(node.id, cut.input, cut.dim, cut.parts)
      if split and type(split.outputs[at]) == 'number' then own = own / cut.parts end
    end
    bytes = bytes + own
  end
  return bytes
end

--- The modules of a stage that take most.
---@param e nnscaler.Explained
---@param spent nnscaler.Spent[] of one rank in the stage
---@param stage integer
---@param add fun(text: string, ...: any)
function M.of_stage(e, spent, stage, add)
  local nodes, rows, by_node, info = e.graph:nodes(), {}, {}, e.line.plan:info()
  local builder = plans.builder(e.graph, info.plan_ngpus, info.runtime_ngpus)
  for i, node in ipairs(nodes) do
    if e.planned[node.id + 1].stage == stage then
      rows[i] = { computation = 0, communication = 0, memory = results_of(e, builder, node) }
      by_node[node.id] = rows[i]
    end
  end
  for _, part in ipairs(spent) do
    local row = by_node[part.node]
    if row then
      local key = part.communication and 'communication' or 'computation'
      row[key] = row[key] + part.forward + part.backward
    end
  end
  add 'Module analysis: the largest three by computation, communication, results with a gradient'
  for depth, sums in ipairs(depths_of(nodes, rows, { 'computation', 'communication', 'memory' })) do
    add('    depth %d', depth)
    for _, key in ipairs { 'computation', 'communication', 'memory' } do
      add('        %-13s - %s', key, largest(sums, key, key == 'memory' and units.bytes
        or format.seconds))
    end
  end
end

return M
