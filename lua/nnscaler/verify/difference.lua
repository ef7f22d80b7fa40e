--- Where two recordings differ first. Each value of the model is one tensor, whatever the plan: it is
--- put together from the parts of run A and compared with every form in which the ranks of A and B
--- have it, in program order: operands as an operator reads them, then its results; in backward the
--- gradient of its results, then what it gives for its operands. After the micro-batches of a step
--- come gradients and weights of its parameters.
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
---@field layout string
---@field parts nnscaler.verify.SeenPart[]

---@class nnscaler.verify.SeenPart
---@field rank integer
---@field start integer[]
---@field shape integer[]
---@field addend integer
---@field addends integer
---@field node nnscaler.GraphNode|nil that the call comes from
---@field line integer|nil of the program's file
---@field tensor string|nil nil: the file makes no such call
---@field read fun(): nnscaler.Tensor

---@class nnscaler.verify.Finding the first difference
---@field phase 'forward'|'backward'|'gradient'|'weight'
---@field step integer from 1
---@field micro integer|nil
---@field node nnscaler.GraphNode|nil the operator
---@field form nnscaler.verify.Form|nil that differs
---@field forms nnscaler.verify.Form[] of both runs
---@field name string|nil of the parameter
---@field value nnscaler.GraphValue|nil
---@field difference number relative to the whole; infinite: a part is missing
---@field limit number

-- The most that is rounding, relative to the whole, by the coarser dtype of the two.
local limits = { float64 = 1e-11, complex128 = 1e-11, float32 = 1e-4, complex64 = 1e-4,
  float16 = 2e-2, bfloat16 = 1e-1 }
local kZero = 1e-10 -- of the largest tensor of its kind: as good as zero

local function real(x)
  if x.dtype:find 'complex' then x = ops.aten.view_as_real(x) end
  return x:to 'float64'
end

local function norm(x)
  if x:numel() == 0 then return 0 end
  x = real(x)
  return x:masked_fill(x:isfinite():logical_not(), 0):norm():item()
end

-- ‖a − b‖; equal infinities and NaN on both sides differ by nothing.
local function gap(a, b)
  if table.concat(a.shape, ' ') ~= table.concat(b.shape, ' ') then return math.huge end
  if a:numel() == 0 then return 0 end
  a, b = real(a), real(b)
  local same = a:eq(b):logical_or(a:isnan():logical_and(b:isnan()))
  local length = (a - b):masked_fill(same, 0):norm():item()
  return length == length and length or math.huge
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
    for i, value in ipairs(node.outputs) do
      out.values[value] = other and other.outputs[i]
    end
  end
  for _, value in ipairs(from.values) do
    if not value.producer then
      out.values[value.id] = by_name[value.role .. ' ' .. value.name]
    end
  end
  return out
end

local function name_of(value, gradient, reader)
  return ('%s%d %d'):format(gradient and 'd' or 'v', value, reader)
end

-- The forms of a micro-batch by name, with ids of A's graph.
local function forms_of(side, run, parts, graph)
  local by_name, known, maps = {}, {}, {}
  for _, part in ipairs(parts) do
    local own = run:graph(part.graph)
    local map = maps[part.graph] or ids(own, graph)
    maps[part.graph] = map
    local sight = own.seen[part.rank][part.sight]
    local value, reader = map.values[sight.value], -1
    if sight.reader >= 0 then reader = map.nodes[sight.reader] end
    if value and reader then
      local name = name_of(value, sight.gradient, reader)
      local form = known[name .. sight.layout]
      if not form then
        form = { side = side, value = value, gradient = sight.gradient, reader = reader,
          layout = sight.layout, parts = {} }
        known[name .. sight.layout] = form
        by_name[name] = by_name[name] or {}
        table.insert(by_name[name], form)
      end
      table.insert(form.parts, { rank = part.rank, start = sight.start, shape = sight.shape,
        addend = sight.addend, addends = sight.addends, tensor = part.tensor, read = part.read,
        line = part.line, node = own.nodes[sight.node + 1] })
    end
  end
  return by_name
end

-- What several calls of a rank give for one gradient counts together.
local function together(form)
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

-- The whole of a value as these forms have it, each an addend where there are several; nil where
-- parts are missing.
local function whole_of(forms, shape, sum)
  local whole
  for _, form in ipairs(forms or {}) do
    local one = recording.join(form.parts, shape)
    if one and not sum then return one end
    if not one and sum then return nil end
    if sum then whole = whole and whole + one or one end
  end
  return whole
end

-- The largest difference between what the ranks of a form have and the whole, and the first part
-- that has it. Addends count together; copies of an addend are like the first one.
local function compare(form, whole)
  local sums, order, worst, at = {}, {}, 0, nil
  local function found(difference, part)
    if difference > worst then worst, at = difference, part end
  end
  for _, part in ipairs(form.parts) do
    if not part.tensor then
      found(math.huge, part)
    elseif part.addends == 1 then
      found(gap(part.read(), store.region(whole, part)), part)
    else
      local key = store.key(part)
      local sum = sums[key]
      if not sum then
        sum = { part = part, by_addend = {} }
        sums[key], order[#order + 1] = sum, sum
      end
      local data, first = part.read(), sum.by_addend[part.addend]
      if first then found(gap(data, first), part) end
      sum.by_addend[part.addend] = first or data
    end
  end
  for _, sum in ipairs(order) do
    local all
    for addend = 0, sum.part.addends - 1 do
      local one = sum.by_addend[addend]
      if not one then all = nil break end
      all = all and all + one or one
    end
    if all then found(gap(all, store.region(whole, sum.part)), sum.part) end
  end
  return worst, at
end

---@class nnscaler.verify.Walk the comparison of two recordings
local Walk = {}
Walk.__index = Walk

local function dtype_of(form)
  for _, part in ipairs(form.parts) do
    if part.tensor then return part.read().dtype end
  end
  return 'float64'
end

function Walk:limit_of(form)
  if self.limit then return self.limit end
  return limits[dtype_of(form)] or 0
end

-- Norm of the largest value of a pass.
local function largest(pass, gradient)
  local key = gradient and 'backward' or 'forward'
  if pass[key] then return pass[key] end
  local most = 0
  for _, forms in sorted.sorted_pairs(pass.a) do
    local form = forms[1]
    if form.gradient == gradient then
      for _, part in ipairs(form.parts) do
        if part.tensor then most = math.max(most, norm(part.read())) end
      end
    end
  end
  pass[key] = most
  return most
end

-- Compares forms of both runs with the whole; returns the first that differs.
function Walk:check(pass, forms, whole, count)
  local size, shown
  for _, form in ipairs(forms) do
    local difference, part = compare(form, whole)
    size = size or norm(whole)
    local limit = self:limit_of(form)
    for _, other in ipairs(difference > 0 and forms or {}) do
      limit = math.max(limit, self:limit_of(other))
    end
    local scaled = difference == 0 and 0 or difference / (size > 0 and size or 1)
    local most = scaled > limit and largest(pass, form.gradient)
    if most and size <= kZero * most and difference <= kZero * most then scaled = 0 end
    if scaled <= limit then
      self.worst = math.max(self.worst, scaled)
    elseif not shown then
      shown = { form = form, part = part, difference = scaled, limit = limit, forms = forms }
    end
  end
  self[count] = self[count] + 1
  return shown
end

local function both(pass, name)
  local list = {}
  for _, forms in ipairs { pass.a[name] or {}, pass.b[name] or {} } do
    for _, form in ipairs(forms) do list[#list + 1] = form end
  end
  return list
end

-- Values of a pass that a node reads in a form of its own, ascending.
local function read_by(pass, gradient)
  local by_reader, seen = {}, {}
  for _, side in ipairs { pass.a, pass.b } do
    for name, forms in sorted.sorted_pairs(side) do
      local form = forms[1]
      if form.gradient == gradient and form.reader >= 0 and not seen[name] then
        seen[name] = true
        by_reader[form.reader] = by_reader[form.reader] or {}
        table.insert(by_reader[form.reader], form.value)
      end
    end
  end
  for _, list in next, by_reader do table.sort(list) end
  return by_reader
end

-- All of a value or gradient as A has it, or else B.
local function reference(pass, name, shape, sum)
  return whole_of(pass.a[name], shape, sum) or whole_of(pass.b[name], shape, sum)
end

function Walk:forward(pass)
  local reads = read_by(pass, false)
  local function shape_of(value) return pass.graph.values[value + 1].shape end
  for _, node in ipairs(pass.graph.nodes) do
    for _, value in ipairs(reads[node.id] or {}) do
      local whole = reference(pass, name_of(value, false, -1), shape_of(value))
        or reference(pass, name_of(value, false, node.id), shape_of(value))
      local found = whole
        and self:check(pass, both(pass, name_of(value, false, node.id)), whole, 'values')
      if found then return found, node, value end
    end
    for _, value in ipairs(node.outputs) do
      local name = name_of(value, false, -1)
      local whole = reference(pass, name, shape_of(value))
      local found = whole and self:check(pass, both(pass, name), whole, 'values')
      if found then return found, node, value end
      if not whole and #both(pass, name) > 0 then self.unseen = self.unseen + 1 end
    end
  end
end

function Walk:backward(pass)
  local gives = read_by(pass, true)
  local function check(node, value, reader)
    local name = name_of(value, true, reader)
    local forms = both(pass, name)
    if #forms == 0 then return end
    for _, form in ipairs(forms) do together(form) end
    local whole = reference(pass, name, pass.graph.values[value + 1].shape, true)
    local single = #(pass.a[name] or {}) <= 1 and #(pass.b[name] or {}) <= 1
    if not whole then
      self.unseen = self.unseen + 1
    elseif single then
      local found = self:check(pass, forms, whole, 'gradients')
      if found then return found, node, value end
    else -- addends in several layouts: their sums
      local other = whole_of(pass.b[name], pass.graph.values[value + 1].shape, true)
      if other then
        local part = { rank = -1, start = {}, shape = other.shape, addend = 0, addends = 1,
          tensor = 'sum', read = function() return other end, node = forms[1].parts[1].node }
        local sum = { side = 'B', value = value, gradient = true, reader = reader,
          layout = 'sum of several layouts', parts = { part } }
        for d = 1, #other.shape do part.start[d] = 0 end
        local found = self:check(pass, { sum }, whole, 'gradients')
        if found then return found, node, value end
      end
    end
  end
  for i = #pass.graph.nodes, 1, -1 do
    local node = pass.graph.nodes[i]
    for _, value in ipairs(node.outputs) do
      local found, at, of = check(node, value, -1)
      if found then return found, at, of end
    end
    for _, value in ipairs(gives[node.id] or {}) do
      local found, at, of = check(node, value, node.id)
      if found then return found, at, of end
    end
  end
end

-- Parts of a kind by name, in the order of the first run that has them.
local function leaves_of(step, kind)
  local order, by_name = {}, {}
  for _, part in ipairs(step.parts) do
    if part.kind == kind then
      if not by_name[part.name] then
        order[#order + 1], by_name[part.name] = part.name, {}
      end
      part.addend, part.addends = 0, 1
      table.insert(by_name[part.name], part)
    end
  end
  return order, by_name
end

-- Compares gradients or weights of parameters. Where a gradient is rounding noise, weights are not
-- compared: an optimizer may make steps of any size of it.
function Walk:leaves(a, b, kind, gradients)
  local order, of_a = leaves_of(a, kind)
  local _, of_b = leaves_of(b, kind)
  local all = 0
  for _, name in ipairs(order) do
    local whole = gradients and gradients[name]
    if kind == 'gradient' then
      whole = recording.join(of_a[name], of_a[name][1].whole)
      self.wholes[name] = whole
    end
    if whole then all = math.sqrt(all ^ 2 + norm(whole) ^ 2) end
  end
  for _, name in ipairs(order) do
    local parts = of_a[name]
    local whole = self.wholes[name] and kind == 'gradient' and self.wholes[name]
      or recording.join(parts, parts[1].whole)
    local noise = gradients and gradients[name] and gradients[name]:abs():le(kZero * all)
    local function masked(list)
      local out = {}
      for i, part in ipairs(list) do
        out[i] = setmetatable({ read = function()
          return noise and part.read():masked_fill(store.region(noise, part), 0) or part.read()
        end }, { __index = part })
      end
      return out
    end
    local forms = {}
    for _, side in ipairs { { 'A', parts }, { 'B', of_b[name] } } do
      if side[2] then
        forms[#forms + 1] = { side = side[1], gradient = kind == 'gradient', layout = '',
          parts = masked(side[2]) }
      end
    end
    if noise then whole = whole:masked_fill(noise, 0) end
    local found = self:check({ a = {}, forward = all, backward = all }, forms, whole,
      kind == 'gradient' and 'gradients' or 'weights')
    if found then return found, name end
  end
end

-- Parts of values by micro-batch, and the micro-batches ascending.
local function by_micro(step)
  local order, parts = {}, {}
  for _, part in ipairs(step.parts) do
    if part.kind == 'value' then
      if not parts[part.micro] then
        order[#order + 1], parts[part.micro] = part.micro, {}
      end
      table.insert(parts[part.micro], part)
    end
  end
  table.sort(order)
  return order, parts
end

-- The operator whose call made what differs, in words of its own graph.
local function named(found, node)
  local part = found.part
  return part and part.node or node
end

function Walk:step(number)
  local a, b = self.a:step(number), self.b:step(number)
  local order, of_a = by_micro(a)
  local _, of_b = by_micro(b)
  for _, micro in ipairs(order) do
    local graph = self.a:graph(of_a[micro][1].graph)
    local pass = { graph = graph, a = forms_of('A', self.a, of_a[micro], graph),
      b = forms_of('B', self.b, of_b[micro] or {}, graph) }
    for _, phase in ipairs { 'forward', 'backward' } do
      local found, node, value = self[phase](self, pass)
      if found then
        return { phase = phase, step = number, micro = micro, node = named(found, node),
          form = found.form, part = found.part, forms = found.forms,
          value = graph.values[value + 1], difference = found.difference, limit = found.limit }
      end
    end
  end
  self.wholes = {}
  for _, kind in ipairs { 'gradient', 'weight' } do
    local found, name = self:leaves(a, b, kind, kind == 'weight' and self.wholes or nil)
    if found then
      return { phase = kind, step = number, name = name, form = found.form, part = found.part,
        forms = found.forms, difference = found.difference, limit = found.limit }
    end
  end
end

---@class nnscaler.verify.Compared
---@field first { name: string, difference: number }[] first weights that differ
---@field finding nnscaler.verify.Finding|nil
---@field steps integer that were compared
---@field values integer comparisons of values, and so on
---@field gradients integer
---@field weights integer
---@field unseen integer that no run shows whole
---@field worst number of what is rounding

--- Compares two recordings.
---@param a nnscaler.verify.Recording
---@param b nnscaler.verify.Recording
---@param limit? number relative difference that is rounding
---@return nnscaler.verify.Compared
function M.of(a, b, limit)
  local walk = setmetatable({ a = a, b = b, limit = limit, values = 0, gradients = 0, weights = 0,
    unseen = 0, worst = 0, wholes = {} }, Walk)
  local out = { first = {}, steps = math.min(a.steps, b.steps) }
  local of_b, shapes = {}, {}
  for _, leaf in ipairs(b:weights(1)) do of_b[leaf.name] = leaf.data end
  for _, leaf in ipairs(a:weights(1)) do
    local other = of_b[leaf.name]
    local size = norm(leaf.data)
    local difference = other and gap(other, leaf.data) / (size > 0 and size or 1) or math.huge
    shapes[leaf.name] = true
    local most = math.max(limits[leaf.data.dtype] or 0, other and limits[other.dtype] or 0)
    if difference > (limit or most) then
      out.first[#out.first + 1] = { name = leaf.name, difference = difference }
    end
  end
  for number = 1, out.steps do
    out.finding = walk:step(number)
    if out.finding then break end
  end
  for _, key in ipairs { 'values', 'gradients', 'weights', 'unseen', 'worst' } do
    out[key] = walk[key]
  end
  return out
end

return M
