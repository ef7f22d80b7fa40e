--- nnscaler.wrap: a module that plans itself at its first call, from the real input. Until then it
--- is the model as it was given; then it is a parallel module of the same names, called in the same
--- way: each rank gives its own rows of samples and gets its own rows of the results.
local Parallel = require 'nnscaler.library.module'
local arguments = require 'nnscaler.library.arguments'
local checkpoint = require 'nnscaler.library.checkpoint'
local configs = require 'nnscaler.library.config'
local ends = require 'nnscaler.library.ends'
local engines = require 'nnscaler.library.engine'
local fail = require 'nnscaler.fail'
local kinds = require 'nnscaler.nn.kinds'
local log = require('nnscaler.log').logger 'nnscaler.library'
local nn = require 'nnscaler.nn'
local optimizers = require 'nnscaler.library.optimizer'
local pipeline = require 'nnscaler.pipeline'
local ranks = require 'nnscaler.ranks'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local sources = require 'nnscaler.source'
local trace = require 'nnscaler.trace'

---@class nnscaler.WrapOpts
---@field policy? string|function 'rannc' unless told; as pas_policy of a job
---@field compute_config? nnscaler.ComputeConfig
---@field micro_batches? integer of a call, 1 unless told: each rank's rows are cut into as many
---@field whole? string[] arguments that are no rows, but the same on all ranks
---@field seed? integer of values that parameters have not yet at the first call, 0 unless told
---@field gen_savedir? string folder of generated programs, './.nnscaler'; '' keeps none
---@field reuse? 'match'|'override'|'moo'|'graph' as gen_reuse of a job; 'moo' unless told
---@field instance_name? string tells programs of one class with different plans apart
---@field module_dtype? string given to floating parameters and buffers

local known = { policy = 'any', compute_config = 'table', micro_batches = 'number', whole = 'table',
  seed = 'number', gen_savedir = 'string', reuse = 'string', instance_name = 'string',
  module_dtype = 'string' }

---@class nnscaler.WrappedModule: nnscaler.ParallelModule
local Wrapped = nn.class('Wrapped', Parallel)

-- What a module is until its first call.
local Waiting = {}

-- The optimizer before the first call has made it: it has no gradients to forget.
local Later = {}
function Later:__index(key)
  if key == 'zero_grad' then return function() end end
  fail('usage', 'library.wrap', ("optimizer.%s before the first call of the model, which plans it "
    .. 'and makes its optimizer'):format(tostring(key)), 'call the model first')
end

local function check(model, optimizer, opts)
  if kinds.of(model) ~= 'module' then
    fail('usage', 'library.wrap', ('a %s cannot be wrapped; expected an nn.Module'):format(
      type(model)))
  end
  if #Parallel.find(model) > 0 then
    fail('usage', 'library.wrap', ('%s has a parallel module already; expected a plain one'):format(
      model.class_name), 'wrap the whole model only')
  end
  if optimizer ~= nil and (type(optimizer) ~= 'table' or optimizer.type == nil) then
    fail('usage', 'library.wrap', ('the optimizer is a %s; expected a table as a job has it')
      :format(type(optimizer)), "{ type = 'sgd', args = { lr = 0.01 } }")
  end
  local n = opts.micro_batches
  if n and (n < 1 or n % 1 ~= 0) then
    fail('usage', 'library.wrap', ('micro_batches is %s; expected a whole number from 1 on'):format(
      tostring(n)))
  end
end

local function check_config(config)
  for _, key in ipairs { 'use_end2end', 'inference_only' } do
    if config[key] then
      fail('usage', 'library.wrap', ('compute_config.%s; a wrapped module is called'):format(key),
        'leave it out; nnscaler.parallelize takes it')
    end
  end
end

function Wrapped:init(model, optimizer, opts)
  if opts.module_dtype then model:to(opts.module_dtype) end
  rawset(self, '_waiting', setmetatable({ model = model, optimizer = optimizer, opts = opts },
    Waiting))
  for _, name in ipairs(rawget(model, '_names')) do self[name] = rawget(model, name) end
  self.training = model.training
end

local function source_of(model)
  return sources.of(model, { loss = false, arg_names = arguments.names(model) })
end

-- Options for this number of ranks, with the optimizer, whose state counts in plans.
local function options_of(waiting, config, opts)
  local chosen = engines.options(waiting.model, opts.policy, config, opts)
  if waiting.spec and type(waiting.spec.type) ~= 'function' then chosen.optimizer = waiting.spec end
  return chosen
end

-- Runs the policy and becomes the parallel module.
local function plan(self, ...)
  local waiting = rawget(self, '_waiting')
  if self.path ~= '' then
    fail('usage', 'library.wrap', ("'%s' is a wrapped module inside of another; expected it to be "
      .. 'the whole model'):format(self.path), 'wrap the outer module, or nnscaler.parallelize '
      .. 'this one')
  end
  local model, opts, given = waiting.model, waiting.opts, { n = select('#', ...), ... }
  local chosen = options_of(waiting, opts.compute_config, opts)
  local engine, first = engines.new(source_of(model), chosen, true), ranks.rank() == 0
  local own = ends.new(engine, model.class_name, opts.micro_batches, opts.whole)
  if first then log.info 'Tracing model ...' end
  engine.training:get(own:first(given), true)
  if first then log.info 'Routes verification passed.' end
  for _, name in ipairs(rawget(self, '_names')) do rawset(self, name, nil) end
  rawset(self, '_names', {})
  rawset(self, '_waiting', nil)
  Parallel.init(self, { engine = engine, label = model.class_name, ends = own,
    aliases = model:tied_names(), draws = true })
  self:train(self.training)
  self:assign_paths()
  if first then log.info 'Synchronizing parameters ...' end
  self:materialize(opts.seed)
  if waiting.optimizer then
    local optimizer = waiting.optimizer
    local lr = rawget(optimizer, 'lr')
    setmetatable(optimizer, nil)
    optimizers.new(self, waiting.spec.type, waiting.spec.args, optimizer)
    if lr then optimizer.lr = lr end
  end
  ranks.barrier()
  for r = 0, first and ranks.world_size() - 1 or -1 do
    log.info('%s is ready. (rank%d)', model.class_name, r)
  end
end

--- The plan for so many ranks of the hardware that pas_config names, made here without any of them:
--- of a module that was not called yet. Nothing is drawn or run.
---@param world integer
---@param ... any arguments of forward as one rank would give them; only kinds and shapes count
---@return userdata plan
function Wrapped:plan_for(world, ...)
  local waiting, given = rawget(self, '_waiting'), { n = select('#', ...), ... }
  if not waiting then
    fail('usage', 'library.wrap', 'plan_for of a module that has a plan', 'wrap the model anew')
  end
  local config = { runtime_ngpus = world }
  for key, value in sorted_pairs(waiting.opts.compute_config) do config[key] = value end
  local opts = setmetatable({ load_module = false }, { __index = waiting.opts })
  local chosen = options_of(waiting, config, opts)
  local line = pipeline.new(source_of(waiting.model), chosen)
  local times = chosen.plan_ngpus / opts.micro_batches
  local args = ends.resized(given, line.source.arg_names, opts.whole, times)
  return line:ask_policy(line:graph(args, true))
end

function Wrapped:forward(...)
  if rawget(self, '_waiting') then
    if trace.tracing() then return rawget(self, '_waiting').model:forward(...) end
    plan(self, ...)
  end
  return Parallel.forward(self, ...)
end

--- Forgets all gradients.
function Wrapped:zero_grad()
  if rawget(self, '_waiting') then return nn.Module.zero_grad(self) end
  return Parallel.zero_grad(self)
end

--- Whole parameters and persistent buffers by name, on every rank; once there is a plan, a
--- collective.
---@return table<string, nnscaler.Tensor>
function Wrapped:state_dict()
  if not rawget(self, '_waiting') then return checkpoint.full_state_dict(self) end
  local state = {}
  for _, entry in ipairs(nn.Module.state_dict(self)) do state[entry.name] = entry.tensor.data end
  return state
end

--- Takes whole values as load_state_dict of a module, each rank its parts.
---@param state table<string, nnscaler.Tensor>|{ name: string, tensor: nnscaler.Tensor }[]
---@return nnscaler.WrappedModule self
function Wrapped:load_state_dict(state)
  if rawget(self, '_waiting') then return nn.Module.load_state_dict(self, state) end
  local weights = {}
  for key, value in sorted_pairs(state) do
    local listed = type(key) == 'number'
    weights[listed and value.name or key] = listed and value.tensor or value
  end
  checkpoint.load_merged_state_dict(self, weights)
  return self
end

--- Wraps a module.
---@param model nnscaler.nn.Module
---@param optimizer? { type: string|table|function, args?: table } as optimizer of a job
---@param opts? nnscaler.WrapOpts
---@return nnscaler.WrappedModule
---@return nnscaler.ParallelOptimizer|nil optimizer made at the first call of the module
return function(model, optimizer, opts)
  opts = configs.options(opts, known)
  check(model, optimizer, opts)
  local whole = {}
  for _, name in ipairs(opts.whole or {}) do whole[name] = true end
  local chosen = { policy = opts.policy or 'rannc', whole = whole,
    compute_config = configs.compute(opts.compute_config), seed = opts.seed or 0,
    micro_batches = opts.micro_batches or 1, reuse = opts.reuse or 'moo',
    gen_savedir = opts.gen_savedir, instance_name = opts.instance_name,
    module_dtype = opts.module_dtype }
  configs.policy(chosen.policy, 'library.wrap')
  check_config(chosen.compute_config)
  local later = optimizer and setmetatable({}, Later)
  local wrapped = Wrapped(model, later, chosen)
  if optimizer then rawget(wrapped, '_waiting').spec = optimizer end
  return wrapped, later
end
