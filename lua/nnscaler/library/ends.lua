--- The ends of a wrapped module: every rank gives its own rows of samples and gets its own rows of
--- the results. Between, a program works on the rows of all ranks of the unit, in the order of
--- ranks, in micro-batches: the k-th takes the k-th part of each rank's rows.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local groups = require 'nnscaler.runtime.groups'
local nested = require 'nnscaler.nested'
local ops = require 'nnscaler.ops'
local sorted = require 'nnscaler.sorted'
local tensor = require 'nnscaler.tensor'
local tree = require 'nnscaler.runtime.tree'

---@class nnscaler.library.Ends
---@field count integer micro-batches
---@field ranks integer[]|nil of the scale unit; nil where this rank is alone in it
local Ends = {}
Ends.__index = Ends

local M = {}

---@param engine nnscaler.ProgramEngine
---@param label string the model's class, for messages
---@param micro_batches integer
---@param whole table<string, boolean> names of arguments that every rank gives alike
---@return nnscaler.library.Ends
function M.new(engine, label, micro_batches, whole)
  local sharing = engine.sharing
  local together = sharing and sharing.together or { 0 }
  return setmetatable({ engine = engine, label = label, count = micro_batches, whole = whole,
    names = engine.source.arg_names, size = #together, ranks = #together > 1 and together or nil,
    place = sharing and sharing.rank % sharing.plan_ngpus or 0,
    units = sharing and sharing.units or 1 }, Ends)
end

function Ends:group() return groups.group(self.ranks) end

-- Whether an input is the same on all ranks: it was named so, or is a single number.
local function is_whole(whole, name, x) return whole[name:match '^[^.]*'] or x:dim() == 0 end

function Ends:is_whole(name, x) return is_whole(self.whole, name, x) end

local function show(x)
  return ('%s[%s]%s'):format(x.dtype, table.concat(x.shape, ', '),
    x.requires_grad and ' with gradient' or '')
end

-- Rows that this rank gives; refuses arguments that differ in them, and ranks that do.
function Ends:rows_of(flat, names)
  local rows, first, told = nil, nil, {}
  for i, name in ipairs(names) do
    local x = flat[name]
    told[i] = name .. ' ' .. show(x)
    if not self:is_whole(name, x) then
      if rows and x.shape[1] ~= rows then
        fail('usage', 'library.wrap', ("argument '%s' of %s has %d rows, '%s' has %d; expected one "
          .. 'for each sample in all'):format(name, self.label, x.shape[1], first, rows),
          ("name what every rank gives alike: opts.whole = { '%s' }"):format(name:match '^[^.]*'))
      end
      rows, first = rows or x.shape[1], first or name
    end
  end
  if rows and rows % self.count ~= 0 then
    fail('usage', 'library.wrap', ('%d rows for %d micro-batches; expected a multiple'):format(rows,
      self.count), 'give as many rows, or set opts.micro_batches')
  end
  if not self.ranks then return rows end
  local all = self:group():exchange(table.concat(told, ', '))
  for r, text in ipairs(all) do
    if text ~= all[1] then
      fail('data', 'library.wrap', ('rank %d gives %s the arguments %s, rank %d %s; expected as '
        .. 'many rows, and all else alike, on all ranks of a scale unit'):format(self.ranks[r],
        self.label, text, self.ranks[1], all[1]), 'drop the last rows, or fill them up')
    end
  end
  return rows
end

-- Part k of rows; a copy, since programs may keep it, where it is not all.
local function part_of(x, k, count)
  if count == 1 then return x end
  local n = x.shape[1] / count
  return x:narrow(0, (k - 1) * n, n):contiguous()
end

-- The rows of all ranks of the unit.
function Ends:gather(x)
  if not self.ranks then return x end
  return self:group():all_gather(x:contiguous(), 0, x.shape[1] * self.size)
end

-- This rank's rows of all.
function Ends:own(x)
  if not self.ranks then return x end
  local n = x.shape[1] / self.size
  return x:narrow(0, self.place * n, n):clone()
end

-- Nested values with f(tensor, name) for each tensor, named as inputs are.
local function map(value, name, f)
  if tensor.is_tensor(value) then return f(value, name) end
  if type(value) ~= 'table' then return value end
  local out = {}
  for key, item in sorted.sorted_pairs(value) do
    out[key] = map(item, name .. '.' .. tostring(key), f)
  end
  return out
end

local function map_arguments(args, names, f)
  local out = { n = args.n }
  for i = 1, args.n do out[i] = map(args[i], names[i] or tostring(i), f) end
  return out
end

local function like(x, data) return x.requires_grad and data:detach():requires_grad_() or data end

--- Arguments with so many times the rows, of which only kinds and shapes count.
---@param args table `n` counts them
---@param names string[] of forward's arguments
---@param whole table<string, boolean> those that are no rows
---@param times number
---@return table
function M.resized(args, names, whole, times)
  return map_arguments(args, names, function(x, name)
    if is_whole(whole, name, x) then return x end
    local shape = x.shape
    shape[1] = shape[1] * times
    return like(x, tensor.empty(shape, { dtype = x.dtype }))
  end)
end

--- What the program gets of the arguments of a call: for each micro-batch the arguments, of which
--- only kinds and shapes count, and the inputs. A collective of the unit.
---@param args table `n` counts them
---@param flat table<string, nnscaler.Tensor> their tensors by name
---@return { args: table, inputs: table<string, nnscaler.Tensor> }[]
function Ends:enter(args, flat)
  local names, list = sorted.sorted_keys(flat), {}
  self:rows_of(flat, names)
  for k = 1, self.count do
    local inputs = {}
    for _, name in ipairs(names) do
      local x = flat[name]:detach()
      inputs[name] = self:is_whole(name, x) and x or self:gather(part_of(x, k, self.count))
    end
    list[k] = { inputs = inputs,
      args = map_arguments(args, self.names, function(x, name)
        return like(x, inputs[name])
      end) }
  end
  return list
end

--- Arguments of a micro-batch as `enter` gives them, of which only kinds and shapes count. A
--- collective of the unit.
---@param args table
---@return table
function Ends:first(args)
  local flat = tree.inputs(args, args.n, self.names)
  self:rows_of(flat, sorted.sorted_keys(flat))
  return M.resized(args, self.names, self.whole, self.size / self.count)
end

-- Shapes of the tensors in nested results of a graph, by name.
local function shapes_of(graph)
  local values, shapes = graph:values(), {}
  local function walk(value, name)
    if type(value) ~= 'table' then return end
    if value.value then
      shapes[name] = values[value.value + 1].shape
      return
    end
    for key, item in sorted.sorted_pairs(value) do walk(item, name .. '.' .. tostring(key)) end
  end
  for i, result in sorted.sorted_pairs(graph:outputs()) do walk(result, tostring(i)) end
  return shapes
end

local function spell(shape) return '[' .. table.concat(shape, ', ') .. ']' end

-- Which results have a row for each sample: those that are twice as long where there are twice as
-- many, by the graphs of both.
function Ends:find_rows(args, training)
  local function traced(times)
    return shapes_of(self.engine.source:graph(M.resized(args, self.names, self.whole, times),
      training))
  end
  local once, twice, rows = traced(1), traced(2), {}
  for name, shape in sorted.sorted_pairs(once) do
    local longer = { unpack(shape) }
    if shape[1] then longer[1] = 2 * shape[1] end
    rows[name] = #shape > 0 and spell(twice[name]) == spell(longer)
    local split = self.count > 1 and ('%d micro-batches'):format(self.count)
      or self.units > 1 and ('%d scale units'):format(self.units)
    if not rows[name] and (split or spell(twice[name]) ~= spell(shape)) then
      fail('usage', 'library.wrap', ('result %s of %s has shape %s, and %s for twice as many '
        .. 'samples; expected a row for each%s'):format(name, self.label, spell(shape),
        spell(twice[name]), split and ' under ' .. split or ', or one shape'),
        split and "let all ranks make it together: policy 'data', plan_ngpus the ranks of the run, "
        .. 'micro_batches = 1' or 'samples are the first dimension of arguments and results')
    end
  end
  return rows
end

-- Tensors of nested values in a fixed order, with their names.
local function tensors_of(code, name, list)
  if code.t then
    list[code.t] = name
  else
    for i, key in ipairs(code.keys or {}) do
      tensors_of(code.items[i], name == '' and tostring(key) or name .. '.' .. tostring(key), list)
    end
  end
  return list
end

--- What holds of all calls of a program: names of its inputs that have gradients, places of results
--- that take some, what its results are and which of them are rows. Where the program has stages,
--- each rank knows some of it; a collective of the unit at the first call.
---@param program table
---@param args table of a micro-batch
---@param results table of the program on this rank; `n` counts them
---@param training boolean
---@return table
function Ends:describe(program, args, results, training)
  local lowered, stages = program.lowered, self.engine.sharing and self.engine.sharing.stages
  local about = { inputs = training and lowered:input_gradients() or {},
    seeds = training and lowered:seeds() or {}, rows = {} }
  about.staged = stages ~= nil and stages.count > 1
  local code = { count = results.n, results = nested.encode({ unpack(results, 1, results.n) }, {}) }
  if about.staged then
    local any, first = {}, stages.parts[1].first
    for r, text in ipairs(self:group():exchange(base.json_encode { code = code,
      seeds = about.seeds, inputs = about.inputs, last = program.tells })) do
      local said = base.json_decode(text)
      for _, name in ipairs(said.inputs or {}) do any[name] = true end
      if said.last then about.root, code, about.seeds = r - 1, said.code, said.seeds or {} end
    end
    about.gives = {} -- of each stage one rank has its addend of the gradient
    for _, name in ipairs(about.inputs) do about.gives[name] = first end
    about.inputs = sorted.sorted_keys(any)
  end
  about.code, about.names = code, tensors_of(code.results, '', {})
  if self.ranks or self.count > 1 or self.units > 1 then
    about.rows = self:find_rows(args, training)
  end
  return about
end

-- The tensors of results in the order of `about.names`; of a pipeline the last stage has them.
function Ends:tensors(about, results)
  local tensors, made = {}, {}
  if results.n > 0 then nested.encode({ unpack(results, 1, results.n) }, tensors) end
  if not about.staged then return tensors end
  nested.decode(about.code.results, made, tensor.empty)
  for t = 1, #about.names do
    local x = (tensors[t] or made[t]):contiguous()
    self:group():broadcast(x, about.root)
    tensors[t] = x
  end
  return tensors
end

--- This rank's results of a call.
---@param about table
---@param outputs table[] results of the program for each micro-batch
---@return table results `n` counts them
function Ends:leave(about, outputs)
  if not self.ranks and self.count == 1 then return outputs[1] end
  local parts, joined = {}, {}
  for k, results in ipairs(outputs) do parts[k] = self:tensors(about, results) end
  for t, name in ipairs(about.names) do
    local list = {}
    for k = 1, self.count do
      list[k] = about.rows[name] and self:own(parts[k][t]) or parts[k][t]
    end
    joined[t] = #list == 1 and list[1] or ops.aten.cat(list, 0)
  end
  local results = nested.decode(about.code.results, joined, tensor.empty)
  results.n = about.code.count
  return results
end

--- What the program gets of the gradients of this rank's results: for each micro-batch those of all
--- rows. Of a result that is no rows all ranks have one gradient, that of the first.
---@param about table
---@param seeds nnscaler.Tensor[]
---@return nnscaler.Tensor[][]
function Ends:seeds(about, seeds)
  if not self.ranks and self.count == 1 then return { seeds } end
  local list = {}
  for k = 1, self.count do
    list[k] = {}
    for i, path in ipairs(about.seeds) do
      local x = seeds[i]
      if about.rows[path] then
        x = self:gather(part_of(x, k, self.count))
      elseif self.ranks then
        x = x:clone { memory_format = 'contiguous_format' }
        self:group():broadcast(x, 0)
      end
      list[k][i] = x
    end
  end
  return list
end

--- Gradients of this rank's arguments, in the order of `about.inputs`.
---@param about table
---@param given table<string, nnscaler.Tensor>[] what backward gave for each micro-batch
---@param batches { inputs: table<string, nnscaler.Tensor> }[]
---@return (nnscaler.Tensor|false)[]
function Ends:gradients(about, given, batches)
  local list = {}
  for i, name in ipairs(about.inputs) do
    local whole, parts = self:is_whole(name, batches[1].inputs[name]), {}
    for k = 1, self.count do
      local x = given[k] and given[k][name]
      if about.staged then
        if not (x and about.gives[name]) then x = batches[k].inputs[name]:zeros_like() end
        x = groups.all_reduce(x, self.ranks)
      end
      parts[k] = whole and x or self:own(x)
    end
    local x = parts[1]
    if whole then
      for k = 2, self.count do x = x + parts[k] end
    elseif self.count > 1 then
      x = ops.aten.cat(parts, 0)
    end
    list[i] = x
  end
  return list
end

return M
