--- The program engine: traces the model for the shapes it meets, lowers the graph to a program with
--- an explicit backward, writes that as Lua and runs it without autograd.
local C = require 'nnscaler._C.runtime'
local agree = require 'nnscaler.runtime.agree'
local comm = require 'nnscaler.runtime.comm'
local fail = require 'nnscaler.fail'
local files = require 'nnscaler.runtime.files'
local launch = require 'nnscaler._C.launch'
local log = require('nnscaler.log').logger 'nnscaler.program'
local lower = require 'nnscaler._C.lower'
local ops = require 'nnscaler.ops'
local sample_of = require 'nnscaler.runtime.sample'
local sharing = require 'nnscaler.runtime.sharing'
local store = require 'nnscaler.runtime.store'
local tensor = require 'nnscaler.tensor'
local trace = require 'nnscaler.trace'

local M = {}

---@class nnscaler.ProgramEngine: nnscaler.Engine
local Engine = {}
Engine.__index = Engine

-- Compiles the text of a program; its segments are straight lines of calls into C, so the JIT would
-- gain nothing.
local function load_program(text, chunk)
  local f, message = loadstring(text, chunk)
  if not f then
    fail('state', 'program.load', 'the generated program does not compile: ' .. message,
      'mend the file, or remove it to have it written anew')
  end
  local segments = f()
  if type(segments) ~= 'table' or type(segments.forward) ~= 'function' then
    fail('state', 'program.load', ('%s returns no table with a forward function'):format(chunk))
  end
  jit.off(f, true)
  for _, name in ipairs { 'forward', 'backward' } do
    if segments[name] then jit.off(segments[name], true) end
  end
  return segments
end

-- Choices and fallbacks are said once a run.
local function report(program)
  for _, text in ipairs(program:notes()) do log.info_once('%s', text) end
  for _, text in ipairs(program:warnings()) do log.warning_once('%s', text) end
  for _, call in ipairs(program:fallbacks()) do
    log.warning_once('%s in %s at %s has no derivative rule: it runs again under autograd in '
      .. 'backward', call.op, call.module == '' and 'the model' or call.module, call.place)
  end
end

local add_leaves

function Engine:build(graph, training)
  local device = self.job.device or 'cpu'
  local shared = self.sharing
  local program = lower.lower(graph, {
    device = device, plan = shared and shared:plan_for(graph), rank = shared and shared.rank,
    stage = shared and shared.stage, first = self.first, embedded = self.embedded,
  })
  report(program)
  if shared and not self.shares then
    self.first = program
    self:take_parts(program)
  end
  local mode = training and 'training' or 'evaluation'
  local text, chunk, path = files.obtain(program, {
    folder = self.job.gen_savedir, reuse = self.job.gen_reuse, mode = mode,
    model = self.job.folder or self.model.class_name or 'model', first = not self.written[mode],
    rank = shared and shared.rank,
  })
  self.written[mode] = true
  self.paths[#self.paths + 1] = path
  local segments = load_program(text, chunk)
  local constants = {}
  for i, c in ipairs(program:constants()) do
    constants[i] = C.constant(c.data, c.dtype, c.shape, device)
  end
  return {
    forward = segments.forward, backward = segments.backward, lowered = program,
    context = { seed = self.job.seed or 0, step = 0, micro = 0, constants = constants },
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
  self:add_parts()
end

-- Values of a part of a weight, as `take` gives them unless the engine has its own.
function Engine:draw(parameter, start, shape)
  local data = parameter:draw_part(self.job.seed or 0, start, shape, self.job.device)
  if parameter.requires_grad then data:requires_grad_(true) end
  return data
end

function Engine:add_parts()
  local parts, take = self.sharing and self.sharing.parts, self.take or self.draw
  add_leaves(self, function(name, parameter)
    local leaf = parts and parts[name]
    if parts and not leaf then return nil end -- of another stage
    local shape = leaf and leaf.shape or parameter.shape
    local start = leaf and leaf.start
    if not start then
      start = {}
      for d = 1, #shape do start[d] = 0 end
    end
    return take(self, parameter, start, shape)
  end)
end

--- An engine with the same programs and weights of its own.
---@param take fun(engine: table, parameter: nnscaler.Tensor, start: integer[], shape: integer[]):
---  nnscaler.Tensor
---@return nnscaler.ProgramEngine
function Engine:twin(take)
  local twin = setmetatable({}, Engine)
  for key, value in next, self do twin[key] = value end
  twin.take, twin.seeds = take, {}
  twin:add_parts()
  return twin
end

-- `take(name, leaf)` gives the tensor of a leaf, or nil when it is not this rank's; without it the
-- leaf itself is used.
function add_leaves(self, take)
  local model = self.model
  self.tensors, self.gradients, self.contents = {}, {}, {}
  self.parameters, self.buffers, self.places = {}, {}, {}
  take = take or function(_, leaf) return leaf end
  for _, entry in ipairs(model:named_parameters()) do
    local data = take(entry.name, entry.param)
    if data then
      local i = #self.parameters + 1
      self.parameters[i] = {
        name = entry.name, data = data, requires_grad = entry.param.requires_grad,
      }
      local parent, key = store.place(self.tensors, entry.name)
      parent[key] = data
      local gradients = store.place(self.gradients, entry.name)
      self.places[i] = { table = gradients, key = key }
      self.places[entry.name] = self.places[i]
    end
  end
  for _, entry in ipairs(model:named_buffers()) do
    local data = take(entry.name, entry.buffer)
    if data then
      local parent, key = store.place(self.tensors, entry.name)
      parent[key] = data
      self.buffers[#self.buffers + 1] = {
        name = entry.name, data = data, persistent = entry.persistent ~= false,
        table = parent, key = key, contents = store.place(self.contents, entry.name),
      }
    end
  end
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
    self:add_parts()
  elseif not self.sharing then
    model:materialize(job.seed or 0, job.device)
    add_leaves(self)
  end
  self.names = opts.arg_names or model.forward_arg_names or {}
  local function cache(training)
    return trace.cache(model, {
      arg_names = self.names, loss = not self.embedded,
      build = function(graph) return self:build(graph, training) end,
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

-- What a micro-batch wrote to buffers is what the next one reads; the buffers themselves change at
-- the end of the step.
function Engine:turn_buffers()
  for _, buffer in ipairs(self.buffers) do
    local content = buffer.contents[buffer.key]
    if content then
      if buffer.pending then C.release(buffer.pending) end
      buffer.pending, buffer.contents[buffer.key] = content, nil
      buffer.table[buffer.key] = content
    end
  end
end

function Engine:drop_contents()
  for _, buffer in ipairs(self.buffers) do
    local content = buffer.contents[buffer.key]
    if content then
      C.release(content)
      buffer.contents[buffer.key] = nil
    end
  end
end

function Engine:commit_buffers()
  for _, buffer in ipairs(self.buffers) do
    if buffer.pending then
      tensor.no_grad(function() buffer.data:copy_(buffer.pending) end)
      C.release(buffer.pending)
      buffer.table[buffer.key], buffer.pending = buffer.data, nil
    end
  end
end

-- A step that failed leaves buffers as they were before it.
function Engine:reset_buffers()
  for _, buffer in ipairs(self.buffers) do
    buffer.table[buffer.key], buffer.pending = buffer.data, nil
    buffer.contents[buffer.key] = nil
  end
end

-- Releases what was kept for backward; samples belong to who gave them.
local function drop(saved, inputs)
  for _, value in next, saved do
    if type(value) == 'table' then
      drop(value, inputs)
    elseif not inputs[value] then
      C.release(value)
    end
  end
end

local function set_of(list)
  local set = {}
  for _, value in next, list do set[value] = true end
  return set
end

-- Whether a nested result contains the tensor.
local function holds(value, x)
  if type(value) ~= 'table' then return value == x end
  for _, item in next, value do
    if holds(item, x) then return true end
  end
  return false
end

-- Forward of a micro-batch, of the given weight or the one it tells itself; what backward needs is
-- kept in the returned table. An idle one only keeps step with other units.
function Engine:forward(sample, step, micro, idle, weight)
  launch.at_phase 'forward'
  local args, n_args = sample_of.arguments(self.job, sample)
  args.n = n_args
  local program = self.training:get(args, true)
  local pass = { program = program, saved = {}, sample = sample, step = step, micro = micro }
  local context = program.context
  context.seed, context.step, context.micro = self.job.seed or 0, step, micro
  pass.inputs = self:inputs(args, n_args)
  local results = {
    C.run(program.forward, self.tensors, pass.saved, self.contents, pass.inputs, context),
  }
  if idle then self:drop_contents() else self:turn_buffers() end
  local loss = results[1]
  if loss then -- else another stage makes it
    pass.loss, pass.n = loss, idle and 0 or weight or sample_of.weight(sample, results[2])
    pass.value, pass.rest = loss:item(), { select(2, unpack(results)) }
  end
  return pass
end

-- Backward of a micro-batch. One that counts for nothing (its loss may be 0/0) runs only where
-- others wait for its gradients, which are zeros then.
function Engine:backward(pass, seed_of)
  local program, context = pass.program, pass.program.context
  local empty = pass.n == 0
  local shared = self.sharing
  if not program.backward or (empty and not (shared and (shared.staged or shared.lockstep))) then
    drop(pass.saved, set_of(pass.inputs))
  else
    launch.at_phase 'backward'
    context.step, context.micro = pass.step, pass.micro
    local seed = pass.loss and (seed_of or self.seed_of)(self, pass.loss, pass.n)
    if empty then
      self:backward_empty(program, pass, seed)
    else
      C.run(program.backward, self.tensors, pass.saved, self.gradients, seed, context)
    end
  end
end

-- Keeps of the gradients only what other ranks gave for this one's shards.
function Engine:backward_empty(program, pass, seed)
  local gradients = {}
  store.mirror(self.gradients, gradients)
  comm.mute(true)
  local ok, message = pcall(C.run, program.backward, self.tensors, pass.saved, gradients, seed,
    program.context)
  comm.mute(false)
  if not ok then error(message, 0) end
  for _, share in ipairs(self.shares) do
    local parent, key = store.place(gradients, share.name)
    local place = self.places[share.name]
    if share.sharded and parent[key] then C.accumulate(place.table, place.key, parent[key]) end
  end
end

-- The order in which this rank runs forward (F) and backward (B) of its micro-batches.
function Engine:order(count)
  local staged = self.sharing and self.sharing.staged
  if staged then return staged:order(count) end
  local order = {}
  for k = 0, count - 1 do
    order[2 * k + 1], order[2 * k + 2] = { kind = 'F', micro = k }, { kind = 'B', micro = k }
  end
  return order
end

-- Sums the gradients over the ranks that hold addends of them.
function Engine:reduce()
  self.sharing:reduce(self.shares, function(share)
    local place = self.places[share.name]
    -- A rank whose micro-batches were all empty adds zeros.
    if not place.table[place.key] then
      place.table[place.key] = tensor.zeros(share.shape, {
        dtype = share.dtype, device = self.job.device,
      })
    end
    return place.table[place.key]
  end)
end

---@class nnscaler.StepContext
---@field step? integer
---@field weights? number[] of the micro-batches; by default they tell themselves
---@field seed_of? fun(engine, loss: nnscaler.Tensor, n: number): nnscaler.Tensor by default n
---@field on_loss? fun(k: integer, loss: nnscaler.Tensor, rest: any[]) gets the loss of micro-batch
---  k; otherwise it is released
---@field unsummed? boolean leave out the sum of gradients over ranks

--- Forward and backward of the micro-batches of one step, in their order.
---@param samples any[]
---@param context nnscaler.StepContext
---@return { loss: number, weight: number, losses: number[], outputs: any[] }
function Engine:train_step(samples, context)
  self:reset_buffers()
  local total, weight, losses, outputs, passes = 0, 0, {}, {}, {}
  local shared = self.sharing
  if samples[1] ~= nil then
    agree.check(shared, self:inputs(sample_of.arguments(self.job, samples[1])))
  end
  local count = shared and shared:rounds(#samples) or #samples
  for _, action in ipairs(self:order(count)) do
    local k = action.micro
    if action.kind == 'F' then
      -- Micro-batch k of the step belongs to scale unit k mod U.
      local micro, idle = shared and k * shared.units + shared.unit or k, k >= #samples
      passes[k] = self:forward(idle and self.template or samples[k + 1], context.step or 0, micro,
        idle, context.weights and context.weights[k + 1])
    else
      local pass = passes[k]
      self:backward(pass, context.seed_of)
      passes[k] = nil
      if pass.loss then
        if context.on_loss and k < #samples then
          context.on_loss(k + 1, pass.loss, pass.rest)
        elseif not holds(pass.rest, pass.loss) then
          C.release(pass.loss)
        end
      end
      if pass.loss and k < #samples then
        losses[k + 1], outputs[k + 1] = pass.value, pass.rest
        if pass.n > 0 then total, weight = total + pass.n * pass.value, weight + pass.n end
      end
    end
  end
  self:commit_buffers()
  if shared then
    if not context.unsummed then self:reduce() end
    total, weight = unpack(shared:collect { total, weight })
  end
  return { loss = weight > 0 and total / weight or 0, weight = weight, losses = losses,
    outputs = outputs }
end

--- What forward returns for a sample in evaluation mode; nothing where another stage makes it.
---@param sample any
---@param context { step: integer, micro: integer }
---@return any ...
function Engine:infer(sample, context)
  local args, n_args = sample_of.arguments(self.job, sample)
  args.n = n_args
  local program = self.evaluation:get(args, false)
  program.context.seed = self.job.seed or 0
  program.context.step, program.context.micro = context.step or 0, context.micro or 0
  return C.run(program.forward, self.tensors, {}, self.contents, self:inputs(args, n_args),
    program.context)
end

--- Loss of one micro-batch of the evaluation data, without gradients.
---@param sample any
---@param context { step: integer, micro: integer }
---@return number loss, number weight, any[] outputs
function Engine:eval_step(sample, context)
  local results = { self:infer(sample, context) }
  if not results[1] then return 0, 0, {} end -- another stage makes the loss
  sample_of.check_loss(results[1])
  local n = sample_of.weight(sample, results[2])
  return n > 0 and results[1]:item() or 0, n, { select(2, unpack(results)) }
end

return M
