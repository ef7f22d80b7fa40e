--- The program engine: traces the model for the shapes it meets, lowers the graph to a program with
--- an explicit backward, writes that as Lua and runs it without autograd.
local C = require 'nnscaler._C.runtime'
local comm = require 'nnscaler.runtime.comm'
local fields = require 'nnscaler.runtime.fields'
local files = require 'nnscaler.runtime.files'
local launch = require 'nnscaler._C.launch'
local leaves = require 'nnscaler.runtime.leaves'
local load = require 'nnscaler.runtime.load'
local lockstep = require 'nnscaler.runtime.lockstep'
local log = require('nnscaler.log').logger 'nnscaler.program'
local generate = require 'nnscaler.runtime.generate'
local graphs = require 'nnscaler._C.graph'
local lower = require 'nnscaler._C.lower'
local ops = require 'nnscaler.ops'
local others = require 'nnscaler.runtime.others'
local presence = require 'nnscaler.runtime.presence'
local rank_zero = require 'nnscaler.runtime.first'
local sample_of = require 'nnscaler.runtime.sample'
local sharing = require 'nnscaler.runtime.sharing'
local states = require 'nnscaler.runtime.states'
local steps = require 'nnscaler.runtime.step'
local tree = require 'nnscaler.runtime.tree'
local trace = require 'nnscaler.trace'
local traffic = require 'nnscaler.runtime.traffic'
local weights = require 'nnscaler.runtime.weights'

local M = {}

---@class nnscaler.ProgramEngine: nnscaler.Engine
local Engine = {}
Engine.__index = Engine

-- How the files of this engine are kept.
function Engine:file_opts(mode)
  local job = self.job
  self.settings = self.settings or files.settings(job, self.sharing)
  return {
    folder = job.gen_savedir, reuse = job.gen_reuse, mode = mode, settings = self.settings,
    model = job.folder or self.model.class_name or 'model', first = not self.written[mode],
    device = job.device or 'cpu', strategy = job.broadcast_strategy,
    rank = self.sharing and self.sharing.rank or 0, embedded = self.embedded,
    set_mb = self:set_mb(),
  }
end

-- Whether all ranks make this specialisation at one time: the first one, in `prepare`. Shapes of
-- later ones come to each scale unit in its own time, or never.
function Engine:is_together(mode)
  return self.sharing and mode == 'training' and not self.written.training
end

-- The graph of a specialisation: traced, or with gen_reuse=graph one of before.
function Engine:graph_for(mode, shapes, make)
  local opts, shared = self:file_opts(mode), self.sharing
  if opts.reuse ~= 'graph' or not self:is_together(mode) then
    return files.graph(opts, shapes, make)
  end
  local mine
  local text = rank_zero.run(shared.everybody, shared.rank, function()
    mine = files.graph(opts, shapes, make)
    return mine:json()
  end, shared.beat_s)
  return mine or graphs.from_json(text)
end

-- The text that runs as the program; of the first one, rank 0 writes those of all ranks.
function Engine:file_of(graph, program, mode)
  local opts = self:file_opts(mode)
  if self:is_together(mode) then
    return generate.shared(self.sharing, graph, program, opts)
  end
  local file = files.choose(program, opts, opts.rank)
  files.commit { file }
  return file
end

function Engine:build(graph, training)
  local device = self.job.device or 'cpu'
  local shared = self.sharing
  local plan = shared and shared:plan_for(graph)
  if shared and self.first then
    others.check(shared, graph, plan, self.first_graph, { device = device,
      embedded = self.embedded })
  end
  local program = lower.lower(graph, {
    device = device, plan = plan, rank = shared and shared.rank,
    first = self.first, embedded = self.embedded, set_mb = self:set_mb(),
  })
  generate.tell(program)
  local is_first = not self.first and (training or shared ~= nil)
  if is_first then
    self.first, self.first_graph = program, graph
    if shared then
      self.first_made, self.trainable = presence.made(program), presence.trainable(self.model)
      self:take_parts(program)
    end
    if training then self.states = self:make_states() end
  end
  local mode = training and 'training' or 'evaluation'
  local file = self:file_of(graph, program, mode)
  if self:is_together(mode) and shared:over_all({ file.edited and 1 or 0 }, 'max')[1] == 1 then
    log.info_once 'a program was edited by hand: ranks compare every call (comm.check=full)'
    comm.compare_calls()
  end
  self.written[mode] = true
  self.paths[#self.paths + 1] = file.path
  local segments = program:segments()
  if shared then shared:join(program:groups()) end
  local other = shared and training and select(2, presence.made(program, self.first_made))
  local constants = {}
  for i, c in ipairs(program:constants()) do
    constants[i] = C.constant(c.data, c.dtype, c.shape, device)
  end
  local stages, step = load(file.text, file.chunk, segments, is_first and training)
  self.step = self.step or step
  return {
    stages = stages, tags = segments.tags, lowered = program, other = other,
    structure = graph:structure(), tells = not shared or shared.stages:tells(segments.last_stage),
    context = { seed = self.job.seed or 0, step = 0, micro = 0, tag = 0, constants = constants,
      last = false, empty = false },
  }
end

-- The most that gradients take which ranks sum together, in MB; nil: as lower has it.
function Engine:set_mb() return (self.job.compute_config or {}).reducer_bucket_cap_mb end

--- States of the parameters whose gradients the program accumulates.
---@param data? table<string, nnscaler.Tensor> weights by name, whose gradients autograd makes
---@return nnscaler.States
function Engine:make_states(data)
  local by_name = data or {}
  for _, parameter in ipairs(data and {} or self.parameters) do
    by_name[parameter.name] = parameter.data
  end
  return states.new {
    sets = self.first:sets(), leaves = self.first:parameters(), data = by_name,
    places = not data and self.places or nil, some = self.some, device = self.job.device,
  }
end

-- After sums of gradients, in a step of other graphs than the first one.
function Engine:settle()
  if self.unsettled then presence.settle(self) end
  self.unsettled = false
end

--- The step of an optimizer over the parameters of this engine.
---@param optimizer nnscaler.Optimizer
---@return nnscaler.Step
function Engine:step_of(optimizer)
  local parts
  return steps.new(function()
    if not parts then
      self.states:attach(optimizer)
      parts = { { program = self.step, states = self.states } }
    end
    return parts
  end, self.sharing, function() self:settle() end)
end

-- Makes this rank's parts of the weights; no rank ever holds the whole model.
function Engine:take_parts(program)
  local parts = {}
  self.shares = program:parameters()
  for _, list in ipairs { self.shares, program:buffers() } do
    for _, leaf in ipairs(list) do parts[leaf.name] = leaf end
  end
  self.sharing.parts = parts
  self.some = {} -- names of parameters that some rank has a gradient of
  for _, name in ipairs(self.sharing:agree_gradients(self.shares)) do self.some[name] = true end
  self.traffic = program:traffic()
  if self.sharing.size > 1 then
    log.info('Program of rank %d: %s', self.sharing.rank,
      traffic.line(program, self.traffic, self.sharing.micro_batches))
  end
  leaves.add_parts(self)
  if self.job.broadcast_strategy == 'all' then self:broadcast_weights() end
end

--- Gives every rank the weights and buffers of the first rank that holds them.
function Engine:broadcast_weights()
  local all = {}
  for _, list in ipairs { self.parameters, self.buffers } do
    for _, leaf in ipairs(list) do all[#all + 1] = leaf end
  end
  weights.broadcast(self.sharing, all)
end

--- An engine with the same programs and weights of its own.
---@param take fun(engine: table, parameter: nnscaler.Tensor, start: integer[], shape: integer[]):
---  nnscaler.Tensor
---@return nnscaler.ProgramEngine
function Engine:twin(take)
  local twin = setmetatable({}, Engine)
  for key, value in next, self do twin[key] = value end
  twin.take, twin.seeds = take, {}
  leaves.add_parts(twin)
  if self.states then twin.states = twin:make_states() end
  return twin
end

--- Makes the engine; the model's parameters are materialised on the job's device.
---@param model nnscaler.nn.Module
---@param job table seed, device, forward_args, gen_savedir, gen_reuse
---@param shared? nnscaler.Sharing of several ranks; made from the job if not given
---@param opts? { embedded?: boolean, take?: function, arg_names?: string[] } `embedded`: the model
---  is a module inside a hand-written one; `take` makes the parts of weights, as `twin` has it
---@return nnscaler.ProgramEngine
function M.new(model, job, shared, opts)
  opts = opts or {}
  local self = setmetatable({
    model = model, job = job, written = {}, seeds = {}, paths = {}, embedded = opts.embedded,
    take = opts.take, told = {}, -- by micro-batch: whether this rank is the one that tells its loss
  }, Engine)
  model:assign_paths()
  self.sharing = shared or sharing.new(job)
  if not self.sharing and self.take then
    leaves.add_parts(self)
  elseif not self.sharing then
    model:materialize(job.seed or 0, job.device)
    leaves.add(self)
  end
  self.names = opts.arg_names or model.forward_arg_names or {}
  -- Only hooks change a model in a run.
  self.fields = job.hook and fields.new(model)
  local version = self.fields and function() return self.fields:version() end
  local function cache(training)
    return trace.cache(model, {
      arg_names = self.names, loss = not self.embedded, version = version,
      build = function(graph) return self:build(graph, training) end,
      obtain = function(shapes, make)
        return self:graph_for(training and 'training' or 'evaluation', shapes, make)
      end,
    })
  end
  self.training, self.evaluation = cache(true), cache(false)
  return self
end

--- Makes ready for samples of this kind: with several ranks, the plan and this rank's parts of the
--- weights.
---@param sample any
function Engine:prepare(sample)
  if not self.sharing then return end
  self.template = sample
  self:prepared({ sample }, true)
end

--- Writes the program for samples of this kind, as far as it is not there yet.
---@param sample any
---@param training boolean
function Engine:compile(sample, training)
  self:prepared({ sample }, training)
end

--- Forgets all gradients.
function Engine:zero_grad()
  if self.states then self.states:reset() end
end

--- Gradient of a parameter: the sum over the micro-batches of n·dloss/dw, or nil without a path.
---@param name string
---@return nnscaler.Tensor|nil
function Engine:grad(name)
  local place = self.places[name]
  return place.table[place.key]
end

function Engine:inputs(args, n)
  local device = self.job.device
  local move = device and device ~= 'cpu' and function(x) return x:to(device) end or nil
  return tree.inputs(args, n, self.names, move)
end

-- The seed of backward: a scalar n of the loss's dtype.
function Engine:seed_of(loss, n)
  local key = loss.dtype .. n
  local seed = self.seeds[key]
  if not seed then
    if #self.seeds >= 64 then self.seeds = {} end
    seed = ops.aten.new_full(loss, loss.shape, n)
    self.seeds[key] = seed
    self.seeds[#self.seeds + 1] = key
  end
  return seed
end

local function drop(saved, inputs)
  for _, value in next, saved do
    if type(value) == 'table' then
      drop(value, inputs)
    elseif not inputs[value] then
      C.release(value)
    end
  end
end

-- Whether a nested result contains the tensor.
local function holds(value, x)
  if type(value) ~= 'table' then return value == x end
  for _, item in next, value do
    if holds(item, x) then return true end
  end
  return false
end

-- Sets what a program asks of the micro-batch it runs on: micro-batch k of the step belongs to
-- scale unit k mod U.
function Engine:context_of(program, step, k)
  local shared, context = self.sharing, program.context
  context.seed, context.step = self.job.seed or 0, step
  context.micro = shared and k * shared.units + shared.unit or k
  context.tag = k * program.tags
  context.last, context.empty, context.states = false, false, self.states
  return context
end

-- What runs each micro-batch: its program and the arguments of forward. All ranks of a unit make
-- programs together, so in the order of the micro-batches, before any of them runs.
function Engine:prepared(samples, training)
  local list, cache = {}, training and self.training or self.evaluation
  for k, sample in ipairs(samples) do
    local args, n = sample_of.arguments(self.job, sample)
    args.n = n
    list[k] = { sample = sample, args = args, n = n, program = cache:get(args, training),
      micro = k - 1 }
  end
  return list
end

-- What this rank runs in a step: its micro-batches and, where units wait for each other, idle ones.
function Engine:rounds(samples)
  local items, shared = self:prepared(samples, true), self.sharing
  if not (shared and shared.lockstep) then return items end
  return lockstep.rounds(self, items)
end

-- Forward of a stage for a micro-batch, of the given weight or the one it tells itself; what
-- backward needs is kept in the returned table. An idle one only keeps step with other units.
function Engine:forward(item, step, stage, weight)
  launch.at_phase 'forward'
  local program, sample, idle = item.program, item.sample, item.idle
  local inputs = self:inputs(item.args, item.n)
  local pass = { program = program, saved = {}, inputs = inputs, step = step, micro = item.micro,
    stage = stage, idle = idle }
  local results = {
    C.run(program.stages[stage].F, self.tensors, pass.saved, self.contents, inputs,
      self:context_of(program, step, item.micro)),
  }
  if idle then self.buffer_contents:drop() else self.buffer_contents:turn() end
  local loss = results[1]
  if loss then -- else another stage makes it
    pass.loss, pass.n = loss, idle and 0 or weight or sample_of.weight(sample, results[2])
    pass.value, pass.rest = loss:item(), { select(2, unpack(results)) }
  end
  return pass
end

-- Runs a backward part of a stage, `B` or `W`. A micro-batch that counts for nothing (its loss may
-- be 0/0) runs only where others wait for its gradients, which are zeros then. The last one may
-- start sums over ranks.
function Engine:backward(pass, kind, seed_of, last)
  local program, empty, shared = pass.program, pass.n == 0, self.sharing
  local run = program.stages[pass.stage][kind]
  if not run or (empty and program.tags == 0 and not (shared and shared.lockstep)) then return end
  launch.at_phase 'backward'
  pass.ran = true
  local seed = pass.loss and (seed_of or self.seed_of)(self, pass.loss, pass.n)
  local context = self:context_of(program, pass.step, pass.micro)
  context.last, context.empty = last, empty
  if empty then
    self:backward_empty(run, pass, seed, context)
  else
    C.run(run, self.tensors, pass.saved, self.gradients, seed, context)
  end
end

-- Drops what a micro-batch has kept, if no backward did; samples belong to who gave them.
local function finish(pass)
  if not pass.ran then
    local inputs = {}
    for _, input in next, pass.inputs do inputs[input] = true end
    drop(pass.saved, inputs)
  end
end

-- Keeps of the gradients only what other ranks gave for this one's shards.
function Engine:backward_empty(run, pass, seed, context)
  local gradients = {}
  tree.mirror(self.gradients, gradients)
  C.run(run, self.tensors, pass.saved, gradients, seed, context)
  for _, share in ipairs(self.shares) do
    local parent, key = tree.place(gradients, share.name)
    local place = self.places[share.name]
    if share.sharded and parent[key] then C.accumulate(place.table, place.key, parent[key]) end
  end
end

-- The order in which this rank runs forward (F), backward (B) and, where those are apart, weight
-- gradients (W) of its stages on its micro-batches: that of the first program, or of a plan for
-- another number.
function Engine:order(count)
  local stages, order = self.sharing and self.sharing.stages, {}
  if not stages or stages.count == 1 then
    for k = 0, count - 1 do
      order[2 * k + 1] = { kind = 'F', stage = 0, micro = k }
      order[2 * k + 2] = { kind = 'B', stage = 0, micro = k }
    end
    return order
  end
  if not self.schedule then
    self.schedule = { self.first:schedule() } -- and of how many micro-batches
  end
  return count == self.schedule[2] and self.schedule[1] or stages:order(count, true)
end

---@class nnscaler.StepContext
---@field step? integer
---@field weights? number[] of the micro-batches; by default they tell themselves
---@field seed_of? fun(engine, loss: nnscaler.Tensor, n: number): nnscaler.Tensor by default n
---@field on_loss? fun(k: integer, loss: nnscaler.Tensor, rest: any[]) gets the loss of micro-batch
---  k; otherwise it is released
---@field unsummed? boolean leave out the sum of gradients over ranks

--- Forward and backward of the micro-batches of one step, in the order of the schedule.
---@param samples any[]
---@param context nnscaler.StepContext
---@return { loss: number, weight: number, losses: number[], outputs: any[] }
function Engine:train_step(samples, context)
  self.buffer_contents:reset()
  if self.states then self.states:begin() end
  local total, weight, losses, outputs, passes = 0, 0, {}, {}, {}
  self.told = {}
  local shared = self.sharing
  if shared then
    shared:check_samples(samples, context.step or 0, self.fields and self.fields:version())
  end
  launch.at_phase 'forward'
  local items, backwards = self:rounds(samples), 0
  local order = self:order(#items)
  for _, action in ipairs(order) do
    if action.kind ~= 'F' then backwards = backwards + 1 end
  end
  -- In lockstep a unit's last backward may be an idle one, which completes no gradient.
  local beside = shared and not shared.lockstep and not context.unsummed and not self.late_sums
  for _, action in ipairs(order) do
    local item = items[action.micro + 1]
    local key, k = action.stage * #items + action.micro, item.micro + 1
    if action.kind == 'F' then
      passes[key] = self:forward(item, context.step or 0, action.stage,
        context.weights and context.weights[k])
    else
      local pass = passes[key]
      backwards = backwards - 1
      self:backward(pass, action.kind, context.seed_of, beside and backwards == 0)
      if action.kind == 'W' or not pass.program.stages[action.stage].W then
        finish(pass)
        passes[key] = nil
        if pass.loss and context.on_loss and not pass.idle then
          context.on_loss(k, pass.loss, pass.rest)
        elseif pass.loss and not holds(pass.rest, pass.loss) then
          C.release(pass.loss)
        end
        if pass.loss and not pass.idle then
          losses[k], outputs[k] = pass.value, pass.rest
          if pass.n > 0 and pass.program.tells then
            total, weight = total + pass.n * pass.value, weight + pass.n
          end
          self.told[k] = pass.program.tells
        end
      end
    end
  end
  comm.flush()
  -- Sums of gradients come first on all ranks: some have started in backward.
  if shared and not context.unsummed and not self.late_sums then
    self.step.sum(self.states)
    self.states:wait()
  end
  self.buffer_contents:commit()
  if shared then
    local other = self.fields and self.fields.current ~= '' and 1 or 0
    for _, item in ipairs(items) do other = item.program.other and 1 or other end
    total, weight, other = unpack(shared:over_all { total, weight, other })
    self.unsettled = other > 0 and not context.unsummed
    if not self.late_sums then self:settle() end
  end
  return { loss = weight > 0 and total / weight or 0, weight = weight, losses = losses,
    outputs = outputs }
end

-- Stages of this rank that a micro-batch goes through, ascending.
function Engine:stages_of(micro)
  local shared, list = self.sharing, {}
  if not shared then return { 0 } end
  local lane = math.floor(micro / shared.units) % shared.stages.lanes
  for _, part in ipairs(shared.stages.parts) do
    if part.lane == lane then list[#list + 1] = part.stage end
  end
  return list
end

-- Runs the stages of this rank on a micro-batch of evaluation and returns what forward returns.
function Engine:evaluate(item, step, micro)
  local own, results = item.program.context, {}
  own.seed, own.step, own.micro, own.tag = self.job.seed or 0, step, micro, 0
  local inputs = self:inputs(item.args, item.n)
  for _, stage in ipairs(self:stages_of(micro)) do
    local made = {
      C.run(item.program.stages[stage].F, self.tensors, {}, self.contents, inputs, own),
    }
    if made[1] ~= nil then results = made end
  end
  return results
end

--- What forward returns for a sample in evaluation mode; nothing where another rank makes it.
---@param sample any
---@param context { step: integer, micro: integer }
---@return any ...
function Engine:infer(sample, context)
  local items, shared = self:prepared({ sample }, false), self.sharing
  local micro, results = context.micro or 0, {}
  if shared and shared.lockstep then items = lockstep.evaluation(self, items[1]) end
  for _, item in ipairs(items) do
    local made = self:evaluate(item, context.step or 0, micro)
    if not item.idle then
      results = made
      self.told[micro + 1] = made[1] ~= nil and item.program.tells
    end
  end
  comm.flush()
  return unpack(results)
end

--- Loss of one micro-batch of the evaluation data, without gradients; of the ranks of a unit that
--- make it one has its weight, the others 0.
---@param sample any
---@param context { step: integer, micro: integer }
---@return number loss, number weight, any[] outputs
function Engine:eval_step(sample, context)
  local results = { self:infer(sample, context) }
  if not results[1] then return 0, 0, {} end -- another rank makes the loss
  sample_of.check_loss(results[1])
  local n = self.told[(context.micro or 0) + 1] and sample_of.weight(sample, results[2]) or 0
  return n > 0 and results[1]:item() or 0, n, { select(2, unpack(results)) }
end

return M
