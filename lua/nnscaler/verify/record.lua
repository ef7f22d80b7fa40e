--- Records a run, step by step: of each value of the model and its gradient what each rank has of
--- it, of each parameter its gradient after the sum and its content after the update. A recording is
--- a folder to which each rank writes files of its own; recording.lua reads it.
---
---   recording.json                what was run
---   graph.<hash>.<rank>.json      a graph, and what the results of each call of the rank are of it
---   step.<n>.<rank>.json          parts: what each is, in the order of
---   step.<n>.<rank>.safetensors   their tensors
local C = require 'nnscaler._C.checkpoint'
local align = require 'nnscaler.verify.align'
local base = require 'nnscaler._C.base'
local watch = require 'nnscaler.runtime.watch'

local M = { format = 1 }

---@class nnscaler.verify.Part
---@field kind 'value'|'gradient'|'weight' value: of a graph, or its gradient; gradient, weight: of a
---  parameter in the step, after the sum and after the update; weight also before the first step
---@field name? string of the parameter
---@field micro? integer global number of the micro-batch
---@field graph? string hash, and
---@field sight? integer number of what it is (nnscaler.Sight)
---@field line? integer of the program's file
---@field tensor? string its name in the file; nil: the file makes no such call
---@field start? integer[] of a parameter
---@field shape? integer[]
---@field whole? integer[]

---@class nnscaler.verify.Recorder
local Recorder = {}
Recorder.__index = Recorder

-- What the rank sees of a graph, by segment; written at its first use.
local function sights_of(self, ran)
  local hash = ran.graph:hash()
  local known = self.graphs[hash]
  if known then return known, hash end
  local seen, graph = ran.pipeline:seen(ran.graph, ran.plan)
  known = { segments = {}, calls = {} }
  for i, sight in ipairs(seen) do
    known.segments[sight.segment] = known.segments[sight.segment] or {}
    table.insert(known.segments[sight.segment], { number = i, sight = sight })
  end
  self.graphs[hash] = known
  base.file_write(('%s/graph.%s.%d.json'):format(self.folder, hash, self.rank),
    base.json_encode { graph = graph:json(), seen = seen }, 'diff.record')
  return known, hash
end

local function add(self, part, data)
  if data then
    part.tensor = tostring(#self.tensors)
    self.tensors[#self.tensors + 1] = { part.tensor, data }
  end
  self.parts[#self.parts + 1] = part
end

-- Takes in a segment that has run.
local function take(self, ran, calls)
  if not self.parts then return end -- outside of a step, as for evaluation
  local sights, hash = sights_of(self, ran)
  sights.calls[ran.segment] = sights.calls[ran.segment] or ran.program:calls(ran.segment)
  local found = align.calls(sights.calls[ran.segment], calls, ran.text)
  for _, entry in ipairs(sights.segments[ran.segment] or {}) do
    local call = found[entry.sight.call]
    add(self, { kind = 'value', micro = ran.micro, graph = hash, sight = entry.number,
      line = call and call.line }, call and call.results[entry.sight.out])
  end
end

--- Makes this process record; before the model's programs are loaded.
---@param folder string
---@return nnscaler.verify.Recorder
function M.new(folder)
  local self = setmetatable({ folder = folder, graphs = {} }, Recorder)
  base.make_folder(folder)
  watch.enable(function(ran, calls) take(self, ran, calls) end)
  return self
end

local function content(x)
  if x.kind == 'parameter' then x = x.data end
  return x:detach():clone { memory_format = 'contiguous_format' }
end

local function add_leaf(self, kind, name, data, slice)
  add(self, { kind = kind, name = name, start = slice.start, shape = slice.shape,
    whole = slice.whole }, content(data))
end

local function add_weights(self)
  for _, leaf in ipairs(self.store.leaves) do
    if leaf.data then add_leaf(self, 'weight', leaf.name, leaf.data, leaf.slice) end
  end
end

local function write(self, number)
  local stem = ('%s/step.%d.%d'):format(self.folder, number, self.rank)
  C.write_safetensors(stem .. '.safetensors', self.tensors)
  base.file_write(stem .. '.json', base.json_encode { parts = self.parts, loss = self.loss,
    weight = self.weight, gnorm = self.gnorm }, 'diff.record')
  self.parts, self.tensors, self.loss, self.weight, self.gnorm = nil, nil, nil, nil, nil
end

--- Says what is recorded, once model and engine are there, and keeps the first weights.
---@param t nnscaler.Trainer with its store
---@param about table<string, any> of the run, for the report
function Recorder:start(t, about)
  self.store, self.rank, self.engine, self.number = t.store, t.rank, t.engine, 0
  if self.rank == 0 then
    local policy = t.args.pas_policy or 'dp'
    local info = { format = M.format, version = base.version, ranks = t.world_size, units = t.units,
      plan_ngpus = t.sharing and t.sharing.plan_ngpus or 1, seed = t.seed,
      policy = type(policy) == 'string' and policy or "the recipe's policy",
      per_step = t.span.per_step, micro_batch_size = t.args.micro_batch_size,
      name = t.args.name, job = t.args:file() }
    for key, value in next, about do info[key] = value end
    base.file_write(self.folder .. '/recording.json', base.json_encode(info), 'diff.record')
  end
  self.parts, self.tensors = {}, {}
  add_weights(self)
  write(self, 0)
end

--- Before the forward of a step.
function Recorder:before()
  self.parts, self.tensors, self.number = {}, {}, self.number + 1
end

--- Once gradients are summed and scaled.
---@param result { loss: number, weight: number }
---@param gnorm number
function Recorder:gradients(result, gnorm)
  self.loss, self.weight, self.gnorm = result.loss, result.weight, gnorm
  for _, parameter in ipairs(self.engine.parameters) do
    local gradient = parameter.requires_grad and self.engine:grad(parameter.name)
    local leaf = self.store.by_name[parameter.name]
    local slice = leaf.slice
    if gradient and table.concat(gradient.shape, ' ') ~= table.concat(slice.shape, ' ') then
      slice = leaf.rest
    end
    if gradient then add_leaf(self, 'gradient', parameter.name, gradient, slice) end
  end
end

--- After the update: the step is written.
function Recorder:after()
  add_weights(self)
  write(self, self.number)
end

return M
