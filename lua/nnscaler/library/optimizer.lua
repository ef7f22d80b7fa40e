--- nnscaler.build_optimizer: an optimizer over the parallel modules of a model and what lies
--- outside of them. It sums gradients over the ranks before they are used: those of a parallel
--- module over the ranks that hold addends, all others over the scale units.
local Parallel = require 'nnscaler.library.module'
local door = require 'nnscaler._C.tensor'
local fail = require 'nnscaler.fail'
local load = require 'nnscaler.runtime.load'
local lower = require 'nnscaler._C.lower'
local optim = require 'nnscaler.optim'
local shards = require 'nnscaler.runtime.shards'
local slots = require 'nnscaler.optim.slots'
local states = require 'nnscaler.runtime.states'
local steps = require 'nnscaler.runtime.step'

local M = {}

---@class nnscaler.ParallelOptimizer
---@field lr number learning rate of the next step
---@field inner table the optimizer that updates parameters
---@field parameters { name: string, data: nnscaler.Tensor, requires_grad: boolean }[]
local Optimizer = {}
Optimizer.__index = Optimizer

local function check_model(model, modules)
  if #modules == 0 then
    fail('usage', 'library.build_optimizer', ('%s has no parallel module'):format(
      model.class_name or 'the model'), 'nnscaler.parallelize makes one; other models take '
      .. 'nnscaler.optim')
  end
  local first = modules[1].module._parallel.engine.sharing
  for _, entry in ipairs(modules) do
    local state = entry.module._parallel
    if state.end2end and entry.module ~= model then
      fail('usage', 'library.build_optimizer', ("'%s' is an end-to-end module inside of another; "
        .. 'expected it to be the whole model'):format(entry.name))
    end
    local own = state.engine.sharing
    if (own and own.plan_ngpus) ~= (first and first.plan_ngpus)
      or (own and own.runtime_ngpus) ~= (first and first.runtime_ngpus) then
      fail('usage', 'library.build_optimizer', ("'%s' has plan_ngpus = %d, runtime_ngpus = %d; "
        .. "expected %d and %d, as '%s' has"):format(entry.name, own and own.plan_ngpus or 1,
        own and own.runtime_ngpus or 1, first and first.plan_ngpus or 1,
        first and first.runtime_ngpus or 1, modules[1].name))
    end
    if state.inference_only then
      fail('usage', 'library.build_optimizer', ("'%s' was made with inference_only; it is not "
        .. 'trained'):format(entry.name))
    end
  end
  return first
end

-- Trainable parameters in the order of the model, each with its module if that is parallel.
local function parameters_of(model, modules)
  local owner = {}
  for _, entry in ipairs(modules) do
    for _, leaf in ipairs(entry.module:parameters_for_optimizer()) do
      owner[leaf.data] = { entry.module, leaf.name }
    end
  end
  local inside, outside = {}, {}
  for _, named in ipairs(model:named_parameters()) do
    local parameter = { name = named.name, data = named.param,
      requires_grad = named.param.requires_grad }
    if not parameter.data.materialized then
      fail('usage', 'library.build_optimizer', ("parameter '%s' has no values yet"):format(
        named.name), 'call materialize(seed) of the model before')
    end
    local own = owner[named.param]
    if own then
      parameter.module, parameter.local_name = own[1], own[2]
      inside[#inside + 1] = parameter
    elseif parameter.requires_grad then
      outside[#outside + 1] = parameter
    end
  end
  return inside, outside
end

-- The parameters as an optimizer of the library updates them: in shards where its slots rest so.
local function updated(parameters)
  local list = {}
  for i, parameter in ipairs(parameters) do
    local data = parameter.data
    if parameter.module then
      data = parameter.module._parallel.states:own(parameter.local_name)
    end
    list[i] = { name = parameter.name, data = data, requires_grad = parameter.requires_grad }
  end
  return list
end

-- The optimizer that updates: of the library by name or kind, or what a function makes.
local function make_inner(optimizer_fn, parameters, args)
  if type(optimizer_fn) ~= 'function' then
    return optim.new({ type = optimizer_fn, args = args }, updated(parameters))
  end
  for _, parameter in ipairs(parameters) do
    local of = parameter.module and parameter.module._parallel.states.leaves[parameter.local_name]
    if of and shards.cuts(of) then
      fail('usage', 'library.build_optimizer', ("the state of '%s' rests in shards (use_zero=%d), "
        .. 'and the optimizer of optimizer_fn updates whole parts by itself'):format(parameter.name,
        of.zero), 'give the name of an optimizer or a kind, or set use_zero=0 or 3')
    end
  end
  local inner = optimizer_fn(parameters, args)
  if type(inner) ~= 'table' or type(inner.step) ~= 'function' then
    fail('usage', 'library.build_optimizer', ('optimizer_fn returned a %s; expected an optimizer '
      .. 'with a method step'):format(type(inner)))
  end
  return inner
end

---@param model nnscaler.nn.Module
---@param optimizer_fn string|table|fun(parameters: table[], args: table): table
---@param args? table
---@param into? table that becomes the optimizer
---@return nnscaler.ParallelOptimizer
function M.new(model, optimizer_fn, args, into)
  model:assign_paths()
  local modules = Parallel.find(model)
  local shared = check_model(model, modules)
  local self = setmetatable(into or {}, Optimizer)
  self.model, self.modules, self.sharing, self.steps = model, modules, shared, 0
  self.hooks = { before = {}, after = {} }
  self.inside, self.outside = parameters_of(model, modules)
  self.parameters = {}
  for _, list in ipairs { self.inside, self.outside } do
    for _, parameter in ipairs(list) do self.parameters[#self.parameters + 1] = parameter end
  end
  self.by_name = {}
  for _, parameter in ipairs(self.parameters) do self.by_name[parameter.name] = parameter end
  self.inner = make_inner(optimizer_fn, self.parameters, args or {})
  self.lr = self.inner.lr
  self:make_step()
  self:set_random()
  self:zero_grad()
  return self
end

-- The states of parameters outside of parallel modules: the same in a unit, an addend in each.
local function outside_part(self)
  local leaves, data = {}, {}
  for i, parameter in ipairs(self.outside) do
    leaves[i] = { name = parameter.name, shape = parameter.data.shape,
      dtype = parameter.data.dtype, holders = self.sharing and self.sharing.size or 1,
      reduce = self:units() > 1 and self.sharing.across or nil }
    data[parameter.name] = parameter.data
  end
  local program = lower.step(leaves, self.model.class_name or 'the model')
  local _, step = load(program:lua(), '=step outside of parallel modules', {}, true)
  return { program = step,
    states = states.new { sets = program:sets(), leaves = leaves, data = data,
      hooks = self.hooks } }
end

-- What it updates of each parameter of parallel modules, by its name in the whole model.
function Optimizer:slices()
  local slices = {}
  for _, parameter in ipairs(self.inside) do
    local leaves = parameter.module._parallel.states.leaves
    slices[parameter.name] = shards.slice(leaves[parameter.local_name],
      self.sharing and self.sharing.rank or 0)
  end
  return slices
end

-- The step over all parallel modules and what lies outside of them.
function Optimizer:make_step()
  local parts, names = {}, {}
  for _, parameter in ipairs(self.inside) do
    names[parameter.module] = names[parameter.module] or {}
    names[parameter.module][parameter.local_name] = parameter.name
  end
  for _, entry in ipairs(self.modules) do
    local state = entry.module._parallel
    state.states.hooks, state.summing.hooks = self.hooks, self.hooks
    if state.engine.step then
      parts[#parts + 1] = { program = state.engine.step, states = state.states,
        names = names[entry.module] or {} }
    end
  end
  if #self.outside > 0 then
    self.outside_states = outside_part(self)
    parts[#parts + 1] = self.outside_states
  end
  if getmetatable(self.inner) == optim.Optimizer then
    slots.check_parts(self.inner, self:slices())
    for _, part in ipairs(parts) do
      part.states:attach(self.inner, part.names and function(name) return part.names[name] end)
    end
  end
  self.update = steps.new(function() return parts end, self.sharing)
end

-- Draws of a step depend on its number and on the unit, as those of a trained job do.
function Optimizer:set_random()
  door.set_random { step = self.steps, micro = self.sharing and self.sharing.unit or 0 }
end

function Optimizer:units() return self.sharing and self.sharing.units or 1 end

--- Forgets all gradients.
function Optimizer:zero_grad()
  for _, entry in ipairs(self.modules) do entry.module:zero_grad() end
  for _, parameter in ipairs(self.outside) do
    parameter.data.grad = nil
    parameter.data.grad_pending = self:units() > 1
  end
  if self.outside_states then self.outside_states.states:begin() end
  self.summed = false
end

-- A parameter outside of parallel modules without a gradient on any unit keeps none.
function Optimizer:sync_outside()
  local part, has = self.outside_states, {}
  if not part or self:units() == 1 then return end
  for i, parameter in ipairs(self.outside) do
    parameter.data.grad_pending = false
    has[i] = parameter.data.grad and 1 or 0
  end
  local any = self.sharing:over_all(has, 'max')
  for i, parameter in ipairs(self.outside) do part.states.some[parameter.name] = any[i] == 1 end
  part.program.sum(part.states)
  part.states:wait()
end

--- Sums gradients over the ranks; once between zero_grad and step, which calls it itself.
function Optimizer:sync_shard_grad()
  if self.summed then return end
  self.summed = true
  for _, entry in ipairs(self.modules) do entry.module:sync_grad() end
  self:sync_outside()
end

--- Multiplies all gradients by a factor.
---@param factor number
function Optimizer:scale_grads(factor)
  if not self.summed then
    fail('usage', 'library.scale_grads', 'gradients are not summed over the ranks yet',
      'call optimizer:sync_shard_grad() first')
  end
  self.update:scale(factor)
end

--- Clips gradients to a global norm, after summing them over the ranks.
---@param max_norm? number nil: only measures
---@return number norm of all gradients of the whole model, before clipping
function Optimizer:clip_gnorm(max_norm)
  self:sync_shard_grad()
  local norm = self.update:norm()
  self.update:clip(norm, max_norm or 0)
  return norm
end

--- Updates the parameters.
---@param closure? fun(): any runs forward and backward, after gradients are forgotten
---@return any what the closure returned
function Optimizer:step(closure)
  local result
  if closure then
    self:zero_grad()
    result = closure()
  end
  self:sync_shard_grad()
  if getmetatable(self.inner) == optim.Optimizer then
    self.update:update(self.lr)
  else
    self.inner.lr = self.lr
    self.inner:step()
  end
  self.steps = self.steps + 1
  self:set_random()
  return result
end

--- Calls hook(reducer, gradient) before each sum of a gradient over ranks; `reducer` has `name` and
--- `ranks`, and the hook may change the gradient in place.
---@param hook nnscaler.ReducerHook
function Optimizer:register_reducer_pre_hook(hook)
  self.hooks.before[#self.hooks.before + 1] = hook
end

--- The same after each sum.
---@param hook nnscaler.ReducerHook
function Optimizer:register_reducer_post_hook(hook)
  self.hooks.after[#self.hooks.after + 1] = hook
end

--- State of the optimizer on this rank.
---@return { steps: integer, counts: table<string, integer>, tensors: table[] }
function Optimizer:state_dict()
  if not self.inner.state then
    fail('usage', 'library.optimizer_state', 'the optimizer of optimizer_fn has no method state')
  end
  local state = self.inner:state()
  state.steps = self.steps
  return state
end

--- Names of the state tensors of a parameter that was updated `counts[name]` times.
---@param name string
---@param counts table<string, integer>
---@return string[]
function Optimizer:slots_of(name, counts)
  local slot = self.inner.by_name and self.inner.by_name[name]
  if not slot or (counts[name] or 0) == 0 then return {} end
  local names = {}
  for i, declared in ipairs(self.inner:slots_of(slot)) do
    names[i] = declared.name
  end
  return names
end

--- Takes a state of this rank back.
---@param state table
function Optimizer:load_state_dict(state)
  self.inner:load_state(state)
  self.steps = state.steps or self.steps
  self:set_random()
end

--- Numbers over all ranks, for losses and the like: their sums.
---@param numbers number[]
---@return number[]
function Optimizer:sum_over_units(numbers)
  if not self.sharing then return numbers end
  local sums, units = self.sharing:over_all(numbers), {}
  for i, x in ipairs(sums) do units[i] = x / self.sharing.plan_ngpus end
  return units
end

return M
