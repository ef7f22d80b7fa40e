--- Records the first steps of a training run: of each value of the model and its gradient what each
--- rank has of it, of each parameter its gradient after the sum and its content after the update. A
--- recording is a folder to which each rank writes files of its own; recording.lua reads it.
---
---   recording.json                what was run
---   graph.<hash>.<rank>.json      a graph, and what the results of each call of the rank are of it
---   step.<n>.<rank>.json          parts: what each is, in the order of
---   step.<n>.<rank>.safetensors   their tensors
local C = require 'nnscaler._C.checkpoint'
local align = require 'nnscaler.verify.align'
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local ops = require 'nnscaler.ops'
local recording = require 'nnscaler.verify.recording'
local sorted = require 'nnscaler.sorted'
local store = require 'nnscaler.runtime.store'
local tensor = require 'nnscaler.tensor'
local trainer_parts = require 'nnscaler.trainer.parts'
local watch = require 'nnscaler.runtime.watch'

local M = {}

---@class nnscaler.verify.Part
---@field kind 'input'|'value'|'gradient'|'weight' input: of a micro-batch; value: of a graph, or
---  its gradient; gradient, weight: of a parameter in the step, after the sum and after the update;
---  weight also of buffers, and before the first step
---@field name? string of the parameter, buffer or input
---@field micro? integer global number of the micro-batch
---@field graph? string hash, and
---@field sight? integer number of what it is (nnscaler.Sight)
---@field line? integer of the program's file
---@field tensor? string its name in the file; nil: the program makes no such call
---@field dtype? string of the tensor
---@field start? integer[] of what has a name, as the next two
---@field shape? integer[]
---@field whole? integer[]

---@class nnscaler.verify.Recorder
---@field folder string
---@field steps integer to record
---@field about table<string, any> of the run, for the report
---@field given nnscaler.verify.Recording|nil whose weights the run gets before each step
---@field number integer of the step, from 1
---@field parts nnscaler.verify.Part[]|nil of the step that is recorded
---@field tensors table[]|nil
local Recorder = {}
Recorder.__index = Recorder

--- Raises for a job whose run cannot be recorded.
---@param job nnscaler.Job
---@param area string
function M.refuse(job, area)
  if job.eager then
    fail('usage', area, 'eager=true has no program whose calls could be recorded',
      'leave it out: on one rank the policy dp is one device')
  end
  trainer_parts.refuse(job, area)
end

-- What the rank sees of a graph, by segment; written at its first use.
local function sights_of(self, ran)
  local hash = ran.graph:hash()
  local known = self.graphs[hash]
  if known then return known, hash end
  local seen, graph = ran.pipeline:seen(ran.graph, ran.plan)
  known = { segments = {}, calls = {}, places = align.places(ran.text) }
  for i, sight in ipairs(seen) do
    known.segments[sight.segment] = known.segments[sight.segment] or {}
    table.insert(known.segments[sight.segment], { number = i, sight = sight })
  end
  self.graphs[hash] = known
  base.file_write(('%s/graph.%s.%d.json'):format(self.folder, hash, self.rank),
    base.json_encode { graph = graph:json(), seen = seen }, 'record.write')
  return known, hash
end

local function add(self, part, data)
  if data then
    part.tensor, part.dtype = tostring(#self.tensors), data.dtype
    self.tensors[#self.tensors + 1] = { part.tensor, data }
  end
  self.parts[#self.parts + 1] = part
end

local function add_named(self, part, data, slice)
  part.start, part.shape, part.whole = slice.start, slice.shape, slice.whole
  add(self, part, watch.copy(data.kind == 'parameter' and data.data or data))
end

-- Takes in a segment that has run.
local function take(self, ran, calls)
  if not self.parts then return end -- outside of a step, as for evaluation
  local sights, hash = sights_of(self, ran)
  for name, input in sorted.sorted_pairs(ran.inputs or {}) do
    if tensor.is_tensor(input) then
      add_named(self, { kind = 'input', name = name, micro = ran.micro }, input,
        store.slice_of(input))
    end
  end
  sights.calls[ran.segment] = sights.calls[ran.segment] or ran.program:calls(ran.segment)
  local found = align.calls(sights.calls[ran.segment], calls, sights.places)
  for _, entry in ipairs(sights.segments[ran.segment] or {}) do
    local call = found[entry.sight.call]
    add(self, { kind = 'value', micro = ran.micro, graph = hash, sight = entry.number,
      line = call and call.line }, call and call.results[entry.sight.out])
  end
end

local function add_weights(self, t)
  for _, leaf in ipairs(t.store.leaves) do
    if leaf.data then
      add_named(self, { kind = 'weight', name = leaf.name }, leaf.data, leaf.slice)
    end
  end
end

local function write(self, metrics)
  local stem = ('%s/step.%d.%d'):format(self.folder, self.number, self.rank)
  C.write_safetensors(stem .. '.safetensors', self.tensors)
  base.file_write(stem .. '.json', base.json_encode { parts = self.parts,
    loss = metrics and metrics.train_loss }, 'record.write')
  self.parts, self.tensors = nil, nil
end

-- Changes that matter to what is computed.
local function shown(changes)
  local list = {}
  for _, change in ipairs(changes) do
    if not change:match '^log_level=' and not change:match '^metrics=' then
      list[#list + 1] = change
    end
  end
  return list
end

-- Says what is recorded, once model and engine are there, and keeps the first weights.
function Recorder:start(t)
  self.rank, self.number = t.rank, 0
  local policy, job = t.args.pas_policy or 'dp', t.args
  local info = { format = recording.format, version = base.version, ranks = t.world_size,
    units = t.units, plan_ngpus = t.sharing and t.sharing.plan_ngpus or 1,
    policy = type(policy) == 'string' and policy or "the recipe's policy", first = t.step,
    micro_batch_size = job.micro_batch_size,
    global_batch_size = t.span:size(t.step) * job.micro_batch_size, job = job:file(),
    changes = shown(job:overrides()), precision = self.precision }
  if self.given then recording.check_alike(self.given.info, info) end
  if self.rank == 0 then
    if recording.is_one(self.folder) then
      fail('usage', 'record.folder', ("'%s' holds a recording; expected a new folder"):format(
        self.folder), 'remove it, or give another name')
    end
    base.make_folder(self.folder)
    base.file_write(self.folder .. '/recording.json', base.json_encode(info), 'record.write')
  end
  if t.sharing then t.sharing:barrier() end
  self.parts, self.tensors = {}, {}
  add_weights(self, t)
  write(self)
end

-- Gives this rank's parts what whole weights hold. A master keeps its bits where it rounds to the
-- weight.
local function give(t, wholes)
  for _, whole in ipairs(wholes) do
    local leaf = t.store.by_name[whole.name]
    if leaf and leaf.data and whole.data
      and table.concat(leaf.slice.whole, ' ') == table.concat(whole.data.shape, ' ') then
      leaf.data:copy_(t.store:own(whole.name, whole.data))
      local slot = t.optimizer.by_name[whole.name]
      local master = slot and slot.tensors.master
      if master then
        local own = t.store:own(whole.name, whole.data, leaf.rest):to(master.dtype)
        local kept = master:to(leaf.data.dtype):eq(own:to(leaf.data.dtype))
        master:copy_(ops.aten.where(kept, master, own))
      end
    end
  end
end

-- Before the forward of a step.
function Recorder:begin(t)
  if self.number == self.steps then return end
  self.number = self.number + 1
  if self.given then tensor.no_grad(give, t, self.given:weights(self.number)) end
  self.parts, self.tensors = {}, {}
end

-- Once gradients are summed and scaled.
function Recorder:gradients(t)
  if not self.parts then return end
  for _, parameter in ipairs(t.engine.parameters) do
    local gradient = parameter.requires_grad and t.engine:grad(parameter.name)
    local leaf = t.store.by_name[parameter.name]
    local slice = leaf.slice
    if gradient and table.concat(gradient.shape, ' ') ~= table.concat(slice.shape, ' ') then
      slice = leaf.rest
    end
    if gradient then
      add_named(self, { kind = 'gradient', name = parameter.name }, gradient, slice)
    end
  end
end

-- After the update: the step is written.
function Recorder:finish(t, metrics)
  if not self.parts then return end
  add_weights(self, t)
  write(self, metrics)
  if self.number == self.steps then
    watch.stop()
    t:say('info', 'Recorded %d step(s) in %s', self.number, self.folder)
  end
end

--- Has the run of a job recorded; before its trainer is made.
---@param job nnscaler.Job
---@param options { folder: string, steps: integer, given?: nnscaler.verify.Recording }
function M.attach(job, options)
  local self = setmetatable({ folder = options.folder, steps = options.steps,
    given = options.given, precision = job.precision, graphs = {} }, Recorder)
  watch.enable(function(ran, calls) take(self, ran, calls) end)
  local hooks = { job.hook }
  hooks[#hooks + 1] = {
    after_setup = function(t) self:start(t) end,
    on_step_start = function(t) self:begin(t) end,
    before_gnorm_clip = function(t) self:gradients(t) end,
    on_step_end = function(t, _, metrics) self:finish(t, metrics) end,
  }
  job.hook = hooks
end

return M
