--- The program engine: traces the model for the shapes it meets, lowers the graph to a program with
--- an explicit backward, writes that as Lua and runs it without autograd.
local C = require 'nnscaler._C.runtime'
local comm = require 'nnscaler.runtime.comm'
local fail = require 'nnscaler.fail'
local files = require 'nnscaler.runtime.files'
local launch = require 'nnscaler._C.launch'
local leaves = require 'nnscaler.runtime.leaves'
local log = require('nnscaler.log').logger 'nnscaler.program'
local generate = require 'nnscaler.runtime.generate'
local graphs = require 'nnscaler._C.graph'
local lower = require 'nnscaler._C.lower'
local ops = require 'nnscaler.ops'
local rank_zero = require 'nnscaler.runtime.first'
local sample_of = require 'nnscaler.runtime.sample'
local sharing = require 'nnscaler.runtime.sharing'
local store = require 'nnscaler.runtime.store'
local trace = require 'nnscaler.trace'
local traffic = require 'nnscaler.runtime.traffic'
local weights = require 'nnscaler.runtime.weights'

local M = {}

---@class nnscaler.ProgramEngine: nnscaler.Engine
local Engine = {}
Engine.__index = Engine

-- Compiles the text of a program and returns the functions of each stage by kind: F, B, W. They are
-- straight lines of calls into C, so the JIT would gain nothing.
local function load_program(text, chunk, segments)
  local f, message = loadstring(text, chunk)
  if not f then
    fail('state', 'program.load', 'the generated program does not compile: ' .. message,
      'mend the file, or remove it to have it written anew')
  end
  local functions, stages = f(), {}
  jit.off(f, true)
  for _, segment in ipairs(segments) do
    local run = type(functions) == 'table' and functions[segment.name]
    if type(run) ~= 'function' then
      fail('state', 'program.load', ('%s returns no table with a %s function'):format(chunk,
        segment.name))
    end
    jit.off(run, true)
    stages[segment.stage] = stages[segment.stage] or {}
    stages[segment.stage][segment.kind] = run
  end
  return stages
end

-- How the files of this engine are kept.
function Engine:file_opts(mode)
  local job = self.job
  self.settings = self.settings or files.settings(job, self.sharing)
  return {
    folder = job.gen_savedir, reuse = job.gen_reuse, mode = mode, settings = self.settings,
    model = job.folder or self.model.class_name or 'model', first = not self.written[mode],
    device = job.device or 'cpu', strategy = job.broadcast_strategy,
    rank = self.sharing and self.sharing.rank or 0, embedded = self.embedded,
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
  local program = lower.lower(graph, {
    device = device, plan = shared and shared:plan_for(graph), rank = shared and shared.rank,
    first = self.first, embedded = self.embedded,
  })
  generate.tell(program)
  if shared and not self.shares then
    self.first = program
    self:take_parts(program)
  end
  local mode = training and 'training' or 'evaluation'
  local file = self:file_of(graph, program, mode)
  self.written[mode] = true
  self.paths[#self.paths + 1] = file.path
  local segments = program:segments()
  if shared then shared:join(segments, program:groups()) end
  local constants = {}
  for i, c in ipairs(program:constants()) do
    constants[i] = C.constant(c.data, c.dtype, c.shape, device)
  end
  return {
    stages = load_program(file.text, file.chunk, segments), tags = segments.tags,
    lowered = program,
    context = { seed = self.job.seed or 0, step = 0, micro = 0, tag = 0, constants = constants },
  }
end

-- Makes this rank's parts of the weights; no rank ever holds the whole model.
function Engine:take_parts(program)
  local parts = {}
  self.shares = program:parameters()
  for _, list in ipairs { self.shares, program:buffers() } do
    for _, leaf in ipairs(list) do parts[leaf.name] = leaf end
  end
  self.sharing.parts = parts
  local cap = (self.job.compute_config or {}).reducer_bucket_cap_mb
  cap = cap and math.floor(cap * 2 ^ 20)
  local with_gradient = self.sharing:agree_gradients(self.shares)
  self.traffic = program:traffic(cap, with_gradient)
  if self.sharing.size > 1 then
    log.info('Program of rank %d: %s', self.sharing.rank,
      traffic.line(program, self.traffic, self.sharing.micro_batches))
  end
  self.buckets = program:buckets(cap, with_gradient)
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
    take = opts.take,
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
  local function cache(training)
    return trace.cache(model, {
      arg_names = self.names, loss = not self.embedded,
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
  local args, n = sample_of.arguments(self.job, sample)
  args.n = n
  self.training:get(args, true)
end

--- Writes the program for samples of this kind, as far as it is not there yet.
---@param sample any
---@param training boolean
function Engine:compile(sample, training)
  local args, n = sample_of.arguments(self.job, sample)
  args.n = n
  local cache = training and self.training or self.evaluation
  cache:get(args, training)
end

--- Forgets all gradients.
function Engine:zero_grad()
  for _, place in ipairs(self.places) do
    local gradient = place.table[place.key]
    if gradient then
      C.release(gradient)
      place.table[place.key] = nil
    end
  end
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
  return store.inputs(args, n, self.names, move)
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
  return context
end

-- Forward of a stage for micro-batch k, of the given weight or the one it tells itself; what
-- backward needs is kept in the returned table. An idle one only keeps step with other units.
function Engine:forward(sample, step, k, stage, idle, weight)
  launch.at_phase 'forward'
  local args, n_args = sample_of.arguments(self.job, sample)
  args.n = n_args
  local program = self.training:get(args, true)
  local inputs = self:inputs(args, n_args)
  local pass = { program = program, saved = {}, inputs = inputs, step = step, micro = k,
    stage = stage }
  local results = {
    C.run(program.stages[stage].F, self.tensors, pass.saved, self.contents, inputs,
      self:context_of(program, step, k)),
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
-- be 0/0) runs only where others wait for its gradients, which are zeros then.
function Engine:backward(pass, kind, seed_of)
  local program, empty, shared = pass.program, pass.n == 0, self.sharing
  local run = program.stages[pass.stage][kind]
  if not run or (empty and program.tags == 0 and not (shared and shared.lockstep)) then return end
  launch.at_phase 'backward'
  pass.ran = true
  local seed = pass.loss and (seed_of or self.seed_of)(self, pass.loss, pass.n)
  local context = self:context_of(program, pass.step, pass.micro)
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
  store.mirror(self.gradients, gradients)
  comm.mute(true)
  local ok, message = pcall(C.run, run, self.tensors, pass.saved, gradients, seed, context)
  comm.mute(false)
  if not ok then error(message, 0) end
  for _, share in ipairs(self.shares) do
    local parent, key = store.place(gradients, share.name)
    local place = self.places[share.name]
    if share.sharded and parent[key] then C.accumulate(place.table, place.key, parent[key]) end
  end
end

-- The order in which this rank runs forward (F), backward (B) and, where those are apart, weight
-- gradients (W) of its stages on its micro-batches.
function Engine:order(count)
  local stages = self.sharing and self.sharing.stages
  if stages and stages.count > 1 then return stages:order(count, true) end
  local order = {}
  for k = 0, count - 1 do
    order[2 * k + 1] = { kind = 'F', stage = 0, micro = k }
    order[2 * k + 2] = { kind = 'B', stage = 0, micro = k }
  end
  return order
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
  if self.reducer then self.reducer:reset() end
  local total, weight, losses, outputs, passes = 0, 0, {}, {}, {}
  local shared = self.sharing
  if shared then shared:check_samples(samples, context.step or 0) end
  local count, backwards = shared and shared:rounds(#samples) or #samples, 0
  local order = self:order(count)
  for _, action in ipairs(order) do
    if action.kind ~= 'F' then backwards = backwards + 1 end
  end
  for _, action in ipairs(order) do
    local k = action.micro
    local key = action.stage * count + k
    if action.kind == 'F' then
      local idle = k >= #samples
      passes[key] = self:forward(idle and self.template or samples[k + 1], context.step or 0, k,
        action.stage, idle, context.weights and context.weights[k + 1])
    else
      local pass = passes[key]
      backwards = backwards - 1
      if shared and backwards == 0 and not context.unsummed then self.reducer:arm() end
      self:backward(pass, action.kind, context.seed_of)
      if action.kind == 'W' or not pass.program.stages[action.stage].W then
        finish(pass)
        passes[key] = nil
        if pass.loss and context.on_loss and k < #samples then
          context.on_loss(k + 1, pass.loss, pass.rest)
        elseif pass.loss and not holds(pass.rest, pass.loss) then
          C.release(pass.loss)
        end
        if pass.loss and k < #samples then
          losses[k + 1], outputs[k + 1] = pass.value, pass.rest
          if pass.n > 0 then total, weight = total + pass.n * pass.value, weight + pass.n end
        end
      end
    end
  end
  comm.flush()
  -- Sums of gradients come first on all ranks: some have started in backward.
  if shared and not context.unsummed then self.reducer:finish() end
  self.buffer_contents:commit()
  if shared then total, weight = unpack(shared:collect { total, weight }) end
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

--- What forward returns for a sample in evaluation mode; nothing where another rank makes it.
---@param sample any
---@param context { step: integer, micro: integer }
---@return any ...
function Engine:infer(sample, context)
  local args, n_args = sample_of.arguments(self.job, sample)
  args.n = n_args
  local program = self.evaluation:get(args, false)
  local own = program.context
  own.seed, own.step = self.job.seed or 0, context.step or 0
  own.micro, own.tag = context.micro or 0, 0
  local inputs, results = self:inputs(args, n_args), {}
  for _, stage in ipairs(self:stages_of(own.micro)) do
    local made = {
      C.run(program.stages[stage].F, self.tensors, {}, self.contents, inputs, own),
    }
    if made[1] ~= nil then results = made end
  end
  comm.flush()
  return unpack(results)
end

--- Loss of one micro-batch of the evaluation data, without gradients.
---@param sample any
---@param context { step: integer, micro: integer }
---@return number loss, number weight, any[] outputs
function Engine:eval_step(sample, context)
  local results = { self:infer(sample, context) }
  if not results[1] then return 0, 0, {} end -- another rank makes the loss
  sample_of.check_loss(results[1])
  local n = sample_of.weight(sample, results[2])
  return n > 0 and results[1]:item() or 0, n, { select(2, unpack(results)) }
end

return M
