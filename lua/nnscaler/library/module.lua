--- ParallelModule: a module whose forward runs as a generated program on several ranks. Its tree
--- has this rank's parts of the parameters under the names of the module that it was made of.
local call = require 'nnscaler.library.call'
local door = require 'nnscaler._C.tensor'
local fail = require 'nnscaler.fail'
local nn = require 'nnscaler.nn'
local presence = require 'nnscaler.runtime.presence'
local steps = require 'nnscaler.library.steps'
local trace = require 'nnscaler.trace'

---@class nnscaler.ParallelModule: nnscaler.nn.Module
local Parallel = nn.class 'ParallelModule'

-- What holds parts below the module; it computes nothing itself.
local Part = nn.class 'Part'
function Part:forward()
  fail('usage', 'library.part', ("'%s' is part of a parallel module and cannot be called by itself")
    :format(self.path or '?'), 'call the parallel module')
end

-- What a parallel module knows beside its tree.
local State = {}
State.__index = State

-- Where names with dots lead: containers made on the way. Names count from 0, lists from 1.
local function place(root, name)
  local at, last = root, nil
  for part in name:gmatch '[^.]+' do
    if last then
      local below = rawget(at, last)
      if not below then
        below = Part()
        at[last] = below
        root._parallel.containers[#root._parallel.containers + 1] = below
      end
      at = below
    end
    last = part:match '^%d+$' and tonumber(part) + 1 or part
  end
  return at, last
end

---@param state table { engine, label, end2end, inference_only, aliases }
function Parallel:init(state)
  setmetatable(state, State)
  state.containers, state.by_name = {}, {}
  state.calls = 0
  rawset(self, '_parallel', state)
  local engine = state.engine
  for _, list in ipairs { engine.parameters, engine.buffers } do
    for _, leaf in ipairs(list) do
      local at, key = place(self, leaf.name)
      at[key] = leaf.data
      state.by_name[leaf.name] = leaf.data
    end
  end
  for _, tied in ipairs(state.aliases) do
    local at, key = place(self, tied.alias)
    at[key] = state.by_name[tied.name]
  end
  if not state.inference_only then
    state.states = engine:make_states(state.by_name)
    -- Gradients of end-to-end modules are summed where their program makes them.
    state.summing = state.end2end and engine.states or state.states
  end
  state.sums = state.states and state.states:sums() or {}
  if state.inference_only then self:eval() end
end

-- Gradients of this rank are addends from now on.
function State:before_backward()
  if self.summed then
    fail('usage', 'library.backward', ('gradients of %s were already summed over the ranks; '
      .. 'another backward would add to sums'):format(self.label),
      'call optimizer:zero_grad() after each step; accumulate before optimizer:sync_shard_grad()')
  end
  for _, sum in ipairs(self.sums) do self.by_name[sum.name].grad_pending = true end
end

-- The whole module is in training or in evaluation: it is one program.
local function check_mode(self)
  for _, part in ipairs(self._parallel.containers) do
    if part.training ~= self.training then
      fail('usage', 'library.training', ("part '%s' is in %s mode and its parallel module is not")
        :format(part.path or '?', part.training and 'training' or 'evaluation'),
        'train() and eval() are for the whole module')
    end
  end
  if self.training and self._parallel.inference_only then
    fail('usage', 'library.inference_only', ('%s was made with compute_config.inference_only; '
      .. 'expected evaluation mode'):format(self._parallel.label), 'call eval() first')
  end
end

local function check_values(self)
  for _, leaf in ipairs(self._parallel.engine.parameters) do
    if not leaf.data.materialized then
      fail('usage', 'library.values', ("parameter '%s' of %s has no values yet"):format(leaf.name,
        self._parallel.label), self._parallel.draws and 'call materialize(seed) of the whole model'
        or 'with init_module_params = false, load a state dict first')
    end
  end
  self._parallel.ready = true
end

-- What has to hold before anything runs.
function Parallel:_check()
  check_mode(self)
  if not self._parallel.ready then check_values(self) end
end

function Parallel:forward(...)
  local state = self._parallel
  if state.end2end then
    fail('usage', 'library.forward', ('forward of %s, an end-to-end module; expected train_step or '
      .. 'infer_step'):format(state.label))
  end
  if trace.tracing() then
    fail('usage', 'library.nested', ('%s is parallel already and cannot be part of another traced '
      .. 'module'):format(state.label), 'parallelize the outer module only')
  end
  self:_check()
  return call(state, self.training, self.path or '', ...)
end

---@class nnscaler.TrainStepOpts
---@field is_dummy_batch? boolean[] which samples count for nothing
---@field scale_fn? fun(loss: nnscaler.Tensor): nnscaler.Tensor applied to each loss before backward

--- One training step of an end-to-end module: forgets gradients, runs forward and backward of each
--- sample, sums gradients over samples and ranks.
---@param samples any[] one for each micro-batch
---@param opts? nnscaler.TrainStepOpts
---@return any[] outputs what forward returned for each sample: the loss, or { loss, … }
function Parallel:train_step(samples, opts)
  self:_check()
  return steps.train(self, samples, opts or {})
end

--- What forward returns for each sample, in evaluation mode.
---@param samples any[]
---@return any[] outputs
function Parallel:infer_step(samples)
  self:_check()
  return steps.infer(self, samples)
end

--- Sums this module's gradients over the ranks that hold addends of them; once per step.
function Parallel:sync_grad()
  local state = self._parallel
  if state.summed then return end
  state.summed = true
  local sharing = state.engine.sharing
  if not sharing then return end
  if sharing.units > 1 and not state.end2end then state.engine.buffer_contents:commit() end
  for _, sum in ipairs(state.sums) do state.by_name[sum.name].grad_pending = false end
  -- What no backward has reached has no gradient, and is not updated.
  local summing = state.summing
  summing.some = presence.agree(sharing, state.engine.trainable, function(name)
    return summing.leaves[name] and summing:gradient(name) ~= nil
  end)
  if not state.engine.step then return end -- nothing is trained
  state.engine.step.sum(summing)
  summing:wait()
end

--- Forgets all gradients.
function Parallel:zero_grad()
  local state = self._parallel
  state.summed = false
  for _, leaf in ipairs(state.engine.parameters) do
    if leaf.data.materialized then leaf.data.grad = nil end
  end
  if state.end2end then state.engine:zero_grad() end
  if state.states then state.states:begin() end
end

--- What an optimizer updates: this rank's parts of the trainable parameters.
---@return { name: string, data: nnscaler.Tensor, requires_grad: boolean }[]
function Parallel:parameters_for_optimizer()
  local list = {}
  for _, leaf in ipairs(self._parallel.engine.parameters) do
    if leaf.data.requires_grad then list[#list + 1] = leaf end
  end
  return list
end

--- Whole parameters and persistent buffers by name, on every rank. A collective.
---@return table<string, nnscaler.Tensor>
function Parallel:gather_params()
  return require('nnscaler.library.checkpoint').full_state_dict(self)
end

--- The parallel modules of a model, itself included, with their names.
---@param model nnscaler.nn.Module
---@return { name: string, module: nnscaler.ParallelModule }[]
function Parallel.find(model)
  local list = {}
  for _, entry in ipairs(model:named_modules()) do
    if rawget(entry.module, '_parallel') then list[#list + 1] = entry end
  end
  return list
end

--- The tensor that stands for a part of a parameter; `draw` false: it gets its values later.
---@param parameter nnscaler.Tensor
---@param start integer[]
---@param shape integer[]
---@param draw boolean
---@return nnscaler.Tensor
function Parallel.part_of(parameter, start, shape, draw)
  return door.parameter { part_of = parameter, start = start, shape = shape, draw = draw }
end

return Parallel
