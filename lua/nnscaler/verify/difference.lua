--- Where two recordings differ first. Each value of the model is one tensor, whatever the plan: it
--- is put together from the parts of run A and compared with every form in which the ranks of A and
--- B have it, in program order: operands as an operator reads them, then results; in backward the
--- gradient of its results, then what it gives for its operands. After the micro-batches of a step
--- come gradients and weights of its parameters.
local forms = require 'nnscaler.verify.forms'
local recording = require 'nnscaler.verify.recording'
local sorted = require 'nnscaler.sorted'
local store = require 'nnscaler.runtime.store'

local M = {}

---@class nnscaler.verify.Finding the first difference
---@field phase 'input'|'forward'|'backward'|'gradient'|'weight'
---@field step integer from 1
---@field micro integer|nil
---@field node nnscaler.GraphNode|nil the operator; of a parameter: the first that reads it
---@field form nnscaler.verify.Form that differs
---@field part nnscaler.verify.SeenPart the first that differs
---@field forms nnscaler.verify.Form[] of both runs
---@field name string|nil of the parameter, buffer or input
---@field value nnscaler.GraphValue|nil
---@field producer nnscaler.GraphNode|nil of the value
---@field difference number relative to the whole; infinite: a part is missing
---@field limit number
---@field rounding number the same, of a part, not relative

local kZero = 1e-10 -- of the largest tensor of its kind: as good as zero

---@class nnscaler.verify.Walk the comparison of two recordings
---@field a nnscaler.verify.Recording
---@field b nnscaler.verify.Recording
---@field limit number|nil that the user gives
---@field worst number of what is rounding
---@field counts table<string, integer> comparisons by kind; running: values that go by running
---  buffers, unseen: values that no run has whole, both not compared
local Walk = {}
Walk.__index = Walk

-- What is compared of a micro-batch, or of the end of a step.
---@class nnscaler.verify.Pass
---@field graph table of A
---@field a table<string, nnscaler.verify.Form[]>
---@field b table<string, nnscaler.verify.Form[]>
---@field running table<integer, boolean> values that are not alike before the end of the step
---@field largest table<boolean, number> norm of the largest value (false) and gradient (true)

-- Norm of the largest value, or gradient, of a pass.
local function largest(pass, gradient)
  if pass.largest[gradient] then return pass.largest[gradient] end
  local most = 0
  for _, list in sorted.sorted_pairs(pass.a) do
    for _, part in ipairs(list[1].gradient == gradient and list[1].parts or {}) do
      if part.tensor then most = math.max(most, forms.norm(part.read())) end
    end
  end
  pass.largest[gradient] = most
  return most
end

-- Compares forms of both runs with the whole; returns the first that differs.
function Walk:check(pass, list, whole, kind)
  self.counts[kind] = self.counts[kind] + 1
  local size, limit, found = forms.norm(whole), self.limit or 0, nil
  for _, form in ipairs(self.limit and {} or list) do
    limit = math.max(limit, forms.limit_of(form))
  end
  for _, form in ipairs(list) do
    local gap, part = forms.compare(form, whole)
    local difference = gap == 0 and 0 or gap / (size > 0 and size or 1)
    if difference > limit and math.max(size, gap) <= kZero * largest(pass, form.gradient) then
      difference = 0
    end
    if difference <= limit then
      self.worst = math.max(self.worst, difference)
    elseif not found then
      found = { form = form, part = part, difference = difference, limit = limit, forms = list,
        rounding = limit * size }
    end
  end
  return found
end

local function both(pass, name)
  local list = {}
  for _, side in ipairs { pass.a[name] or {}, pass.b[name] or {} } do
    for _, form in ipairs(side) do list[#list + 1] = form end
  end
  return list
end

-- All of a value or gradient as A has it, or else B.
local function reference(pass, name, shape, sum)
  return forms.whole(pass.a[name], shape, sum) or forms.whole(pass.b[name], shape, sum)
end

-- Values that nodes read, or give gradients of, in a form of their own: by node, ascending.
local function read_by(pass, gradient)
  local by_reader, seen = {}, {}
  for _, side in ipairs { pass.a, pass.b } do
    for name, list in sorted.sorted_pairs(side) do
      local form = list[1]
      if form.gradient == gradient and form.reader >= 0 and not seen[name] then
        seen[name] = true
        by_reader[form.reader] = by_reader[form.reader] or {}
        table.insert(by_reader[form.reader], form.value)
      end
    end
  end
  for _, list in sorted.sorted_pairs(by_reader) do table.sort(list) end
  return by_reader
end

-- Whether all ranks of both runs have the same samples.
function Walk:inputs(pass, a, b, micro)
  local order, of_a = recording.named(a, 'input', micro)
  local _, of_b = recording.named(b, 'input', micro)
  for _, name in ipairs(order) do
    local found = self:check(pass, self:leaf(of_a[name], of_b[name], false),
      of_a[name][1].read(), 'inputs')
    if found then
      found.name = name
      return found
    end
  end
end

-- The forms of a value as it is read, behind those as it was made.
local function with_made(pass, value, list, whole)
  local all = both(pass, forms.name(value, false, -1))
  for _, form in ipairs(all) do forms.compare(form, whole) end
  for _, form in ipairs(list) do all[#all + 1] = form end
  return all
end

function Walk:forward(pass)
  local reads = read_by(pass, false)
  for _, node in ipairs(pass.graph.nodes) do
    local function check(value, reader)
      local shape = pass.graph.values[value + 1].shape
      local name = forms.name(value, false, reader)
      local list = both(pass, name)
      if #list == 0 then return nil end
      if pass.running[value] then
        self.counts.running = self.counts.running + 1
        return nil
      end
      local whole = reference(pass, forms.name(value, false, -1), shape)
        or reference(pass, name, shape)
      if not whole then
        self.counts.unseen = self.counts.unseen + 1
        return nil
      end
      local found = self:check(pass, list, whole, 'values')
      if found and reader >= 0 then found.forms = with_made(pass, value, list, whole) end
      return found
    end
    for _, value in ipairs(reads[node.id] or {}) do
      local found = check(value, node.id)
      if found then return found, node, value end
    end
    for _, value in ipairs(node.outputs) do
      local found = check(value, -1)
      if found then return found, node, value end
    end
  end
end

-- The sum of addends that lie in several layouts, as a form.
local function sum_of(whole, first)
  local of = first.parts[1]
  local part = { rank = of.rank, node = of.node, start = {}, shape = whole.shape, addend = 0,
    addends = 1, tensor = 'sum', dtype = whole.dtype, read = function() return whole end }
  for d = 1, #whole.shape do part.start[d] = 0 end
  return { side = first.side, value = first.value, gradient = true, reader = first.reader,
    layout = 'sum of several layouts', parts = { part } }
end

function Walk:backward(pass)
  local gives = read_by(pass, true)
  local function check(value, reader)
    local name = forms.name(value, true, reader)
    local list = both(pass, name)
    if #list == 0 then return nil end
    for _, form in ipairs(list) do forms.together(form) end
    local shape = pass.graph.values[value + 1].shape
    local whole = reference(pass, name, shape, true)
    if not whole then
      self.counts.unseen = self.counts.unseen + 1
      return nil
    end
    if #(pass.a[name] or {}) > 1 or #(pass.b[name] or {}) > 1 then
      list = {}
      for _, side in ipairs { pass.a[name] or {}, pass.b[name] or {} } do
        local all = forms.whole(side, shape, true)
        list[#list + 1] = all and sum_of(all, side[1])
      end
    end
    return self:check(pass, list, whole, 'gradients')
  end
  for i = #pass.graph.nodes, 1, -1 do
    local node = pass.graph.nodes[i]
    for _, value in ipairs(node.outputs) do
      local found = check(value, -1)
      if found then return found, node, value end
    end
    for _, value in ipairs(gives[node.id] or {}) do
      local found = check(value, node.id)
      if found then return found, node, value end
    end
  end
end

-- Parts of both runs that have a name, as forms; of elements that `noise` marks nothing counts.
function Walk:leaf(of_a, of_b, gradient, noise)
  local list = {}
  for _, side in ipairs { { 'A', of_a }, { 'B', of_b } } do
    local parts = {}
    for i, part in ipairs(side[2] or {}) do
      parts[i] = { rank = part.rank, start = part.start, shape = part.shape, tensor = part.tensor,
        dtype = part.dtype, addend = 0, addends = 1, read = function()
          local data = part.read()
          return noise and data:masked_fill(store.region(noise, part), 0) or data
        end }
    end
    if side[2] then
      list[#list + 1] = { side = side[1], gradient = gradient, layout = '', parts = parts }
    end
  end
  return list
end

local function as_missing(of_a)
  return { difference = math.huge, limit = 0, rounding = 0, part = of_a[1],
    form = { side = 'B', layout = '', parts = {} }, forms = {} }
end

-- Compares gradients of parameters, or weights and buffers. Where a gradient is rounding noise,
-- weights are not compared: an optimizer may make steps of any size of it.
function Walk:leaves(a, b, kind)
  local order, of_a = recording.named(a, kind)
  local _, of_b = recording.named(b, kind)
  local all, wholes = 0, {}
  for _, name in ipairs(order) do
    wholes[name] = recording.join(of_a[name], of_a[name][1].whole)
    all = math.sqrt(all ^ 2 + (wholes[name] and forms.norm(wholes[name]) or 0) ^ 2)
  end
  if kind == 'gradient' then self.gradients, self.gnorm = wholes, all end
  for _, name in ipairs(order) do
    local gradient = kind == 'weight' and self.gradients[name]
    local noise = gradient and gradient:abs():le(kZero * self.gnorm)
    local whole = wholes[name]
    if noise and whole then whole = whole:masked_fill(noise, 0) end
    local list = self:leaf(of_a[name], of_b[name], kind == 'gradient', noise)
    local found
    if not of_b[name] then
      found = as_missing(of_a[name])
    elseif whole then
      found = self:check({ largest = { [true] = all, [false] = all } }, list, whole, kind .. 's')
    end
    if found then
      found.name = name
      return found
    end
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

-- The first operator of a graph that reads a parameter.
local function reader_of(graph, name)
  for _, node in ipairs(graph and graph.nodes or {}) do
    for _, value in ipairs(node.inputs) do
      if graph.values[value + 1].name == name then return node end
    end
  end
end

-- A finding of a step: in words of the graph whose run differs, where that has calls of its own.
local function finding(found, more)
  for key, value in next, more do found[key] = value end
  found.node = found.part and found.part.node or found.node
  return found
end

function Walk:step(number)
  local a, b = self.a:step(number), self.b:step(number)
  local order, of_a = by_micro(a)
  local _, of_b = by_micro(b)
  local graph
  for _, micro in ipairs(order) do
    graph = self.a:graph(of_a[micro][1].graph)
    local pass = { graph = graph, a = forms.of('A', self.a, of_a[micro], graph),
      b = forms.of('B', self.b, of_b[micro] or {}, graph), largest = {},
      running = self.a.info.units ~= self.b.info.units and forms.running(graph) or {} }
    self:note_others(graph, of_b[micro] or {})
    local found = self:inputs(pass, a, b, micro)
    if found then return finding(found, { phase = 'input', step = number, micro = micro }) end
    for _, phase in ipairs { 'forward', 'backward' } do
      local differs, node, value = self[phase](self, pass)
      if differs then
        local of = graph.values[value + 1]
        return finding(differs, { phase = phase, step = number, micro = micro, node = node,
          value = of, producer = of.producer and graph.nodes[of.producer + 1] })
      end
    end
  end
  for _, phase in ipairs { 'gradient', 'weight' } do
    local found = self:leaves(a, b, phase)
    if found then
      return finding(found, { phase = phase, step = number, node = reader_of(graph, found.name) })
    end
  end
end

-- Notes which operators only one of the models has.
function Walk:note_others(graph, parts)
  if self.only or #parts == 0 then return end
  local other = self.b:graph(parts[1].graph)
  self.only = { a = forms.only_in(graph, other), b = forms.only_in(other, graph) }
end

---@class nnscaler.verify.Compared
---@field first { name: string, difference: number }[] first weights that differ
---@field only { a: nnscaler.GraphNode[], b: nnscaler.GraphNode[] } operators of one model alone
---@field finding nnscaler.verify.Finding|nil
---@field steps integer that were compared
---@field counts table<string, integer> comparisons: inputs, values, gradients, weights; and of
---  values that were not compared: running, unseen
---@field worst number of what is rounding

-- First weights that differ.
local function first_weights(a, b, limit)
  local of_b, out = {}, {}
  for _, leaf in ipairs(b:weights(1)) do of_b[leaf.name] = leaf.data end
  for _, leaf in ipairs(a:weights(1)) do
    local other = of_b[leaf.name]
    local size = leaf.data and forms.norm(leaf.data) or 0
    local difference = other and leaf.data
      and forms.gap(other, leaf.data) / (size > 0 and size or 1) or math.huge
    local most = limit or math.max(leaf.data and forms.limit(leaf.data.dtype) or 0,
      other and forms.limit(other.dtype) or 0)
    if difference > most then out[#out + 1] = { name = leaf.name, difference = difference } end
  end
  return out
end

--- Compares two recordings.
---@param a nnscaler.verify.Recording
---@param b nnscaler.verify.Recording
---@param limit? number relative difference that is rounding; by the coarser dtype if not given
---@return nnscaler.verify.Compared
function M.of(a, b, limit)
  recording.check_alike(a.info, b.info)
  local walk = setmetatable({ a = a, b = b, limit = limit, worst = 0, gradients = {}, gnorm = 0,
    counts = { inputs = 0, values = 0, gradients = 0, weights = 0, running = 0,
      unseen = 0 } }, Walk)
  local out = { first = first_weights(a, b, limit), steps = math.min(a.steps, b.steps) }
  for number = 1, out.steps do
    out.finding = walk:step(number)
    if out.finding then break end
  end
  out.counts, out.worst, out.only = walk.counts, walk.worst, walk.only or { a = {}, b = {} }
  return out
end

return M
