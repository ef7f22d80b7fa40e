--- The program engine: traces the model for the shapes it meets, lowers the graph to a program with
--- an explicit backward, writes that as Lua and runs it without autograd.
local C = require 'nnscaler._C.runtime'
local casts = require 'nnscaler.runtime.casts'
local comm = require 'nnscaler.runtime.groups'
local fields = require 'nnscaler.runtime.fields'
local inference = require 'nnscaler.runtime.inference'
local launch = require 'nnscaler._C.launch'
local leaves = require 'nnscaler.runtime.leaves'
local lockstep = require 'nnscaler.runtime.lockstep'
local log = require('nnscaler.log').logger 'nnscaler.program'
local load_program = require 'nnscaler.runtime.load'
local ops = require 'nnscaler.ops'
local options = require 'nnscaler.options'
local others = require 'nnscaler.runtime.others'
local pipeline = require 'nnscaler.pipeline'
local presence = require 'nnscaler.runtime.presence'
local sample_of = require 'nnscaler.runtime.sample'
local shards = require 'nnscaler.runtime.shards'
local sharing = require 'nnscaler.runtime.sharing'
local sources = require 'nnscaler.source'
local states = require 'nnscaler.runtime.states'
local steps = require 'nnscaler.runtime.step'
local tree = require 'nnscaler.runtime.tree'
local traffic = require 'nnscaler.runtime.traffic'
local watch = require 'nnscaler.runtime.watch'

local M = {}

---@class nnscaler.ProgramEngine: nnscaler.Engine
local Engine = {}
Engine.__index = Engine

-- Floating point operations of one forward of the whole model, as far as operators tell them.
local function forward_flops(graph)
  local total = 0
  for node = 0, #graph:nodes() - 1 do total = total + (graph:flops(node) or 0) end
  return total
end

-- Makes the program of a graph ready to run. Of the first training graph all ranks make theirs at
-- one time, in `prepare`; shapes of later ones come to each scale unit in its own time, or never.
function Engine:build(graph, training)
  local shared, line, device = self.sharing, self.pipeline, self.options.device
  local plan = shared and shared:plan_for(graph, line)
  local together = self:together(training)
  local made = not together and line:found(graph, plan)
  if self.shares then others.check(shared, graph, plan, line, made) end
  made = made or line:generate(graph, plan, together)
  line:count(training and 'training' or 'evaluation')
  local program, file = made.program, made.file
  if together then self:compare_edited(file) end
  if shared and not self.shares then self:take_parts(program) end
  if training and not self.first then
    self.first, self.first_made, self.graph = program, presence.made(program), graph
    self.flops = forward_flops(graph)
    self.states = self:make_states()
  end
  self.paths[#self.paths + 1] = file.path
  self.texts[file.chunk] = file.text
  local segments = program:segments()
  if shared then shared:join(program:groups()) end
  local other = shared and training and select(2, presence.made(program, self.first_made))
  local constants = {}
  for i, c in ipairs(program:constants()) do
    constants[i] = C.constant(c.data, c.dtype, c.shape, device)
  end
  local with_step = self.first == program and #program:sets() > 0
  local gathers = false
  for _, set in ipairs(with_step and program:sets() or {}) do
    gathers = gathers or shards.cuts(set)
  end
  local cast = program:casts()
  local stages, step, make_casts =
    load_program(file.text, file.chunk, segments, with_step, gathers, #cast > 0)
  self.step = self.step or step
  if watch.enabled then
    watch.stages(stages, program, { graph = graph, plan = plan, pipeline = line,
      text = file.text })
  end
  return {
    stages = stages, tags = segments.tags, lowered = program, other = other,
    casts = cast, make_casts = make_casts, -- their names, and what makes them
    structure = graph:structure(), tells = not shared or shared.stages:tells(segments.last_stage),
    context = { seed = self.options.seed, step = 0, micro = 0, tag = 0, constants = constants,
      last = false, empty = false },
  }
end

-- Nothing but the ranks themselves checks a program that somebody has edited.
function Engine:compare_edited(file)
  if self.sharing:over_all({ file.edited and 1 or 0 }, 'max')[1] == 0 then return end
  log.info_once 'a program was edited by hand: ranks compare every call'
  comm.compare_calls()
end

--- States of the parameters that the step of the first training graph works on.
---@param data? table<string, nnscaler.Tensor> weights by name, whose gradients autograd makes
---@return nnscaler.States
function Engine:make_states(data)
  local by_name = data or {}
  for _, parameter in ipairs(data and {} or self.parameters) do
    by_name[parameter.name] = parameter.data
  end
  return states.new {
    sets = self.first:sets(), leaves = self.first:parameters(), data = by_name,
    places = not data and self.places or nil, some = self.some, device = self.options.device,
    rank = self.sharing and self.sharing.rank, on_host = self.options.zero.on_host,
  }
end

--- All parameters of the model, in its order, as an optimizer on this rank updates them: `data` is
--- its part or shard, nil where that is nothing.
---@return { name: string, data: nnscaler.Tensor|nil, requires_grad: boolean }[]
function Engine:optimized()
  local list, data = {}, {}
  for _, leaf in ipairs(self.parameters) do data[leaf.name] = leaf.data end
  for i, entry in ipairs(self.source:named_parameters()) do
    local own = data[entry.name]
    if own and self.states then own = self.states:own(entry.name) end
    list[i] = { name = entry.name, data = own, requires_grad = entry.param.requires_grad }
  end
  return list
end

--- Which slices of weights the optimizer of this rank updates, by name; nil on one rank, where they
--- are whole.
---@return table<string, nnscaler.Slice>|nil
function Engine:slices()
  if not self.sharing then return nil end
  local slices = {}
  for _, leaf in ipairs(self.shares) do
    slices[leaf.name] = shards.slice(leaf, self.sharing.rank)
  end
  return slices
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
  optimizer.on_host = self.options.zero.on_host.slots
  local parts
  return steps.new(function()
    if not parts then
      self.states:attach(optimizer)
      -- Without any trainable parameter there is no step.
      parts = self.step and { { program = self.step, states = self.states } } or {}
    end
    return parts
  end, self.sharing, function() self:settle() end)
end

-- Makes this rank's parts of the weights; no rank ever holds the whole model.
function Engine:take_parts(program)
  local parts = {}
  self.shares, self.trainable = program:parameters(), presence.trainable(self.source)
  self.buffer_shares = program:buffers()
  for _, list in ipairs { self.shares, self.buffer_shares } do
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
  if self.options.strategy == 'all' then leaves.broadcast(self) end
end

--- An engine with the same programs and weights of its own.
---@param take fun(engine: table, parameter: nnscaler.Tensor, start: integer[], shape: integer[]):
---  nnscaler.Tensor
---@return nnscaler.ProgramEngine
function Engine:twin(take)
  local twin = setmetatable({}, Engine)
  for key, value in next, self do twin[key] = value end
  twin.take, twin.seeds, twin.casts = take, {}, {}
  leaves.add_parts(twin)
  if self.states then twin.states = twin:make_states() end
  return twin
end

-- The ranks that make the first training program at one time; nil for other graphs.
function Engine:together(training)
  return training and not self.pipeline.written.training and self.sharing or nil
end

--- Makes the engine; the model's parameters are materialised on the device of the options.
---@param model nnscaler.nn.Module|nnscaler.Source
---@param job table|nnscaler.Options
---@param shared? nnscaler.Sharing of several ranks; made from the job if not given
---@param take? function makes the parts of weights, as `twin` has it
---@return nnscaler.ProgramEngine
function M.new(model, job, shared, take)
  local self = setmetatable({ seeds = {}, paths = {}, take = take,
    casts = {}, -- programs whose casts of weights are there
    texts = {}, -- of programs, by the name of their chunk
    told = {}, -- by micro-batch: whether this rank is the one that tells its loss
  }, Engine)
  self.source = sources.of(model)
  self.sharing = shared or sharing.new(job)
  self.options = options.of(job, self.sharing and self.sharing.size or 1)
  if self.sharing then self.options.micro_batches = self.sharing.micro_batches end
  self.pipeline = pipeline.new(self.source, self.options, self.sharing and self.sharing.rank)
  self.pipeline.sights = watch.enabled
  if not self.sharing and self.take then
    leaves.add_parts(self)
  elseif not self.sharing then
    self.source:materialize(self.options.seed, self.options.device)
    leaves.add(self)
  end
  self.fields = self.options.hooked and fields.new(self.source)
  local function cache(training)
    return self.source:cache {
      version = self.fields and function() return self.fields:version() end,
      limit = self.options.max_programs,
      build = function(graph) return self:build(graph, training) end,
      obtain = function(shapes, make)
        return self.pipeline:obtain_graph(shapes, training, make, self:together(training))
      end,
    }
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
  local device = self.options.device
  local move = device ~= 'cpu' and function(x) return x:to(device) end or nil
  return tree.inputs(args, n, self.source.arg_names, move)
end

-- The seed of backward: a scalar of the loss's dtype.
function Engine:seed_of(loss, n)
  n = sample_of.seed(loss, n, self.scale)
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

-- Sets what a program asks of the micro-batch it runs on: micro-batch k of the step belongs to
-- scale unit k mod U.
function Engine:context_of(program, step, k)
  local shared, context = self.sharing, program.context
  context.seed, context.step = self.options.seed, step
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
    local args, n = sample_of.arguments(self.options, sample)
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

-- The seed of backward where weights do not count; a micro-batch that counts for nothing stays so.
local function unweighted(engine, loss, n) return engine:seed_of(loss, n > 0 and 1 or 0) end

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
    if share.zero >= 2 and parent[key] then C.accumulate(place.table, place.key, parent[key]) end
  end
end

-- The order in which this rank runs forward (F), backward (B) and, where those are apart, weight
-- gradients (W) of its stages on its micro-batches: that of the first program, or of its plan for
-- another number of them.
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
---@field scale? number by which the loss is multiplied before backward, 1 unless told
---@field weights? number[] of the micro-batches; by default they tell themselves
---@field seed_of? fun(engine, loss: nnscaler.Tensor, n: number): nnscaler.Tensor by default n
---@field on_loss? fun(k: integer, loss: nnscaler.Tensor, rest: any[]) gets the loss of micro-batch
---  k; otherwise it is released
---@field unsummed? boolean leave out the sum of gradients over ranks
---@field unweighted? boolean each loss counts once in the gradients, whatever its weight

--- Forward and backward of the micro-batches of one step, in the order of the schedule.
---@param samples any[]
---@param context nnscaler.StepContext
---@return { loss: number, weight: number, sum: number, count: integer, losses: number[],
---  outputs: any[] } loss: mean by weight; sum and count: of micro-batches that count; all of all
---  ranks, losses and outputs of this one
function Engine:train_step(samples, context)
  casts.drop(self) -- of a step that failed
  self.buffer_contents:reset()
  self.scale = context.scale
  if self.states then self.states:begin() end
  local total, weight, sum, count = 0, 0, 0, 0
  local losses, outputs, passes = {}, {}, {}
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
  local seed_of = context.seed_of or context.unweighted and unweighted
  -- Sums of gradients may start in the last backward.
  local sums = shared and not context.unsummed and not self.late_sums
  for _, action in ipairs(order) do
    local item = items[action.micro + 1]
    local key, k = action.stage * #items + action.micro, item.micro + 1
    if action.kind == 'F' then
      casts.make(self, item.program)
      passes[key] = self:forward(item, context.step or 0, action.stage,
        context.weights and context.weights[k])
    else
      local pass = passes[key]
      backwards = backwards - 1
      self:backward(pass, action.kind, seed_of, sums and backwards == 0)
      if action.kind == 'W' or not pass.program.stages[action.stage].W then
        finish(pass)
        passes[key] = nil
        if pass.loss and context.on_loss and not pass.idle then
          context.on_loss(k, pass.loss, pass.rest)
        elseif pass.loss and not tree.holds(pass.rest, pass.loss) then
          C.release(pass.loss)
        end
        if pass.loss and not pass.idle then
          losses[k], outputs[k] = pass.value, pass.rest
          if pass.n > 0 and pass.program.tells then
            total, weight = total + pass.n * pass.value, weight + pass.n
            sum, count = sum + pass.value, count + 1
          end
          self.told[k] = pass.program.tells
        end
      end
    end
  end
  comm.flush()
  casts.drop(self)
  -- Sums of gradients come first on all ranks: some have started in backward.
  if sums and self.step then
    self.step.sum(self.states)
    self.states:wait()
  end
  self.buffer_contents:commit()
  if shared then
    local other = self.fields and self.fields.current ~= '' and 1 or 0
    for _, item in ipairs(items) do other = item.program.other and 1 or other end
    total, weight, sum, count, other = unpack(shared:over_all { total, weight, sum, count, other })
    self.unsettled = other > 0 and not context.unsummed
    if sums then self:settle() end
  end
  return { loss = weight > 0 and total / weight or 0, weight = weight, sum = sum, count = count,
    losses = losses, outputs = outputs }
end

inference.add(Engine)

return M
