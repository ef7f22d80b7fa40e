--- Forms of values in recorded runs: a value of the model, or its gradient, as all ranks of one run
--- have it in one layout; and how far a form is from the whole value.
local ops = require 'nnscaler.ops'
local recording = require 'nnscaler.verify.recording'
local sorted = require 'nnscaler.sorted'
local store = require 'nnscaler.runtime.store'

local M = {}

---@class nnscaler.verify.Form of a value in one run: its parts in one layout
---@field value integer id in the graph of A
---@field gradient boolean
---@field reader integer id in the graph of A, or -1
---@field side 'A'|'B'
---@field layout string '' of what has a name of its own
---@field parts nnscaler.verify.SeenPart[]

---@class nnscaler.verify.SeenPart
---@field rank integer
---@field start integer[]
---@field shape integer[]
---@field addend integer
---@field addends integer
---@field node nnscaler.GraphNode|nil that the call comes from
---@field line integer|nil of the program's file
---@field tensor string|nil nil: the program makes no such call
---@field dtype string|nil of the tensor
---@field read fun(): nnscaler.Tensor
---@field gap number|nil how far it is from its place in the whole, once compared

-- The most that is rounding, relative to the whole, by dtype.
local limits = { float64 = 1e-11, complex128 = 1e-11, float32 = 1e-4, complex64 = 1e-4,
  float16 = 2e-2, bfloat16 = 1e-1 }

local function real(x)
  if x.dtype:find 'complex' then x = ops.aten.view_as_real(x) end
  return x:to 'float64'
end

--- 2-norm of the finite elements.
---@param x nnscaler.Tensor
---@return number
function M.norm(x)
  if x:numel() == 0 then return 0 end
  x = real(x)
  return x:masked_fill(x:isfinite():logical_not(), 0):norm():item()
end

--- ‖a − b‖; equal infinities and NaN on both sides differ by nothing, other shapes by everything.
---@param a nnscaler.Tensor
---@param b nnscaler.Tensor
---@return number
function M.gap(a, b)
  if table.concat(a.shape, ' ') ~= table.concat(b.shape, ' ') then return math.huge end
  if a:numel() == 0 then return 0 end
  a, b = real(a), real(b)
  local same = a:eq(b):logical_or(a:isnan():logical_and(b:isnan()))
  local length = (a - b):masked_fill(same, 0):norm():item()
  return length == length and length or math.huge
end

--- The most that is rounding of a tensor of a dtype, relative to its norm.
---@param dtype string
---@return number
function M.limit(dtype) return limits[dtype] or 0 end

--- The most that is rounding of a form.
---@param form nnscaler.verify.Form
---@return number
function M.limit_of(form)
  for _, part in ipairs(form.parts) do
    if part.tensor then return M.limit(part.dtype) end
  end
  return 0
end

-- A key of a call that is equal in all graphs of a model.
local function key_of(node) return ('%s %s#%d'):format(node.module, node.op, node.ordinal) end

-- Ids of nodes and values of a graph by those of another one of the model; what that one has not is
-- left out.
local function ids(from, to)
  if from.graph:hash() == to.graph:hash() then
    local same = setmetatable({}, { __index = function(_, id) return id end })
    return { nodes = same, values = same }
  end
  local by_key, by_name, out = {}, {}, { nodes = {}, values = {} }
  for _, node in ipairs(to.nodes) do by_key[key_of(node)] = node end
  for _, value in ipairs(to.values) do
    if not value.producer then by_name[value.role .. ' ' .. value.name] = value.id end
  end
  for _, node in ipairs(from.nodes) do
    local other = by_key[key_of(node)]
    out.nodes[node.id] = other and other.id
    for i, value in ipairs(node.outputs) do out.values[value] = other and other.outputs[i] end
  end
  for _, value in ipairs(from.values) do
    if not value.producer then
      out.values[value.id] = by_name[value.role .. ' ' .. value.name]
    end
  end
  return out
end

--- Operators that a graph has and another one of the model has not.
---@param graph { nodes: nnscaler.GraphNode[] }
---@param other { nodes: nnscaler.GraphNode[] }
---@return nnscaler.GraphNode[]
function M.only_in(graph, other)
  local there, out = {}, {}
  for _, node in ipairs(other.nodes) do there[key_of(node)] = true end
  for _, node in ipairs(graph.nodes) do
    if not there[key_of(node)] then out[#out + 1] = node end
  end
  return out
end

-- Values that what forward returns is computed from.
local function needed(graph)
  local out = {}
  local function add(nest)
    if type(nest) ~= 'table' then return end
    if type(nest.value) == 'number' then out[nest.value] = true end
    for _, item in sorted.sorted_pairs(nest) do add(item) end
  end
  add(graph.graph:outputs())
  for i = #graph.nodes, 1, -1 do
    local any = false
    for _, value in ipairs(graph.nodes[i].outputs) do any = any or out[value] end
    for _, value in ipairs(any and graph.nodes[i].inputs or {}) do out[value] = true end
  end
  return out
end

--- Values that only become contents of running buffers, as a batch norm's averages do, and go by
--- what was in them: units that train on micro-batches of their own put those together at the end
--- of a step only.
---@param graph { graph: nnscaler.Graph, nodes: nnscaler.GraphNode[] }
---@return table<integer, boolean> by id
function M.running(graph)
  local from, out, returned = {}, {}, needed(graph)
  for _, update in ipairs(graph.graph:buffer_updates()) do from[update.buffer] = true end
  for _, node in ipairs(graph.nodes) do
    local any = false
    for _, value in ipairs(node.inputs) do any = any or from[value] end
    for _, value in ipairs(any and node.outputs or {}) do
      from[value], out[value] = true, not returned[value] or nil
    end
  end
  return out
end

--- Name of a value, or its gradient, as a node reads or gives it.
---@param value integer
---@param gradient boolean
---@param reader integer node, or -1: as it is made
---@return string
function M.name(value, gradient, reader)
  return ('%s%d %d'):format(gradient and 'd' or 'v', value, reader)
end

--- The forms of a micro-batch by name, with ids of A's graph.
---@param side 'A'|'B'
---@param run nnscaler.verify.Recording
---@param parts nnscaler.verify.Part[]
---@param graph table of A
---@return table<string, nnscaler.verify.Form[]>
function M.of(side, run, parts, graph)
  local by_name, known, maps = {}, {}, {}
  for _, part in ipairs(parts) do
    local own = run:graph(part.graph)
    local map = maps[part.graph] or ids(own, graph)
    maps[part.graph] = map
    local sight = own.seen[part.rank][part.sight]
    local value, reader = map.values[sight.value], -1
    if sight.reader >= 0 then reader = map.nodes[sight.reader] end
    if value and reader then
      local name = M.name(value, sight.gradient, reader)
      local form = known[name .. sight.layout]
      if not form then
        form = { side = side, value = value, gradient = sight.gradient, reader = reader,
          layout = sight.layout, parts = {} }
        known[name .. sight.layout] = form
        by_name[name] = by_name[name] or {}
        table.insert(by_name[name], form)
      end
      table.insert(form.parts, { rank = part.rank, start = sight.start, shape = sight.shape,
        addend = sight.addend, addends = sight.addends, tensor = part.tensor, dtype = part.dtype,
        read = part.read, line = part.line, node = own.nodes[sight.node + 1] })
    end
  end
  return by_name
end

--- Counts what several calls of a rank give for one gradient together.
---@param form nnscaler.verify.Form
function M.together(form)
  local by_rank, parts = {}, {}
  for _, part in ipairs(form.parts) do
    local first = by_rank[part.rank]
    if not first then
      by_rank[part.rank], parts[#parts + 1] = part, part
    else
      local one, other = first.read, part.read
      first.read = function() return one() + other() end
      first.tensor = first.tensor and part.tensor
    end
  end
  form.parts = parts
end

--- The whole of a value as these forms have it: the first that has all parts, or the sum of all.
---@param forms nnscaler.verify.Form[]|nil
---@param shape integer[]
---@param sum? boolean whether each form is an addend
---@return nnscaler.Tensor|nil nil where parts are missing
function M.whole(forms, shape, sum)
  local whole
  for _, form in ipairs(forms or {}) do
    local one = recording.join(form.parts, shape)
    if one and not sum then return one end
    if not one and sum then return nil end
    if sum then whole = whole and whole + one or one end
  end
  return whole
end

-- Addends of one place, with what several ranks hold of one.
local function add_addend(sums, part)
  local key = store.key(part)
  local sum = sums[key]
  if not sum then
    sum = { parts = {}, by_addend = {} }
    sums[key], sums[#sums + 1] = sum, sum
  end
  sum.parts[#sum.parts + 1] = part
  local data, first = part.read(), sum.by_addend[part.addend]
  sum.by_addend[part.addend] = first or data
  return first and M.gap(data, first) or 0
end

-- The sum of all addends of a place; nil where one is missing.
local function total(sum)
  local all
  for addend = 0, sum.parts[1].addends - 1 do
    local one = sum.by_addend[addend]
    if not one then return nil end
    all = all and all + one or one
  end
  return all
end

--- The largest difference between what the ranks of a form have and the whole, and the first part
--- that has it. Addends count together; copies of an addend are like the first one.
---@param form nnscaler.verify.Form
---@param whole nnscaler.Tensor
---@return number
---@return nnscaler.verify.SeenPart|nil
function M.compare(form, whole)
  local sums, worst, at = {}, 0, nil
  for _, part in ipairs(form.parts) do
    if not part.tensor then
      part.gap = math.huge
    elseif part.addends == 1 then
      part.gap = M.gap(part.read(), store.region(whole, part))
    else
      part.gap = add_addend(sums, part)
    end
  end
  for _, sum in ipairs(sums) do
    local all = total(sum)
    local gap = all and M.gap(all, store.region(whole, sum.parts[1])) or 0
    for _, part in ipairs(sum.parts) do part.gap = math.max(part.gap, gap) end
  end
  for _, part in ipairs(form.parts) do
    if part.gap > worst then worst, at = part.gap, part end
  end
  return worst, at
end

return M
