--- nnscaler.parallelize: a module, or a class of modules, made parallel by the engine that trains
--- jobs, for use in a hand-written loop.
local Parallel = require 'nnscaler.library.module'
local arguments = require 'nnscaler.library.arguments'
local checkpoint = require 'nnscaler.library.checkpoint'
local configs = require 'nnscaler.library.config'
local engines = require 'nnscaler.library.engine'
local kinds = require 'nnscaler.nn.kinds'
local fail = require 'nnscaler.fail'
local log = require('nnscaler.log').logger 'nnscaler.library'
local pipeline = require 'nnscaler.pipeline'
local sources = require 'nnscaler.source'

---@class nnscaler.ParallelizeOpts
---@field gen_savedir? string folder of generated programs, './.nnscaler'; '' keeps none
---@field reuse? 'match'|'override'|'moo'|'graph' as gen_reuse of a job; 'match' unless told
---@field broadcast_strategy? 'none'|'code'|'no_weights'|'all' as of a job; 'code' unless told
---@field instance_name? string tells programs of one class with different plans apart
---@field load_module? boolean false: write the programs of all ranks and return nothing
---@field module_dtype? string given to floating parameters and buffers before tracing
---@field module_fn? fun(): nnscaler.nn.Module makes a module of the class
---@field init_module_params? boolean false: no values are drawn; a state dict gives them

local known = { gen_savedir = 'string', reuse = 'string', instance_name = 'string',
  broadcast_strategy = 'string', load_module = 'boolean', module_dtype = 'string',
  module_fn = 'function', init_module_params = 'boolean' }

-- A class that nn.class made, or a module of one.
local function kind_of(what)
  if kinds.of(what) == 'module' then return 'module' end
  if type(what) == 'table' and rawget(what, '_meta') and rawget(what, 'class_name') then
    return 'class'
  end
  fail('usage', 'library.parallelize', ('a %s cannot be made parallel; expected an nn.Module or a '
    .. 'class that nn.class made'):format(type(what)))
end

local function make(what, kind, opts)
  if kind == 'module' then
    if opts.module_fn then
      fail('usage', 'library.parallelize', 'module_fn with a module; expected a class',
        'module_fn makes the module of a class')
    end
    return what
  end
  local module = (opts.module_fn or what)()
  if kinds.of(module) ~= 'module' then
    fail('usage', 'library.parallelize', ('module_fn returned a %s; expected an nn.Module'):format(
      type(module)))
  end
  return module
end

local function refuse_nested(module)
  for _, entry in ipairs(Parallel.find(module)) do
    fail('usage', 'library.nested', ("'%s' of %s is parallel already and cannot be part of another "
      .. 'traced module'):format(entry.name, module.class_name),
      'parallelize the outer module only')
  end
end

-- Stages that run one after another take samples in micro-batches.
local function refuse_stages(plan, module, config)
  if not plan or config.use_end2end or #plan:info().stages == 1 then return end
  fail('plan', 'library.stages', ('the plan of %s has %d stages; expected one for a module that is '
    .. 'called with whole inputs'):format(module.class_name, #plan:info().stages), 'nnscaler.wrap '
    .. 'runs stages, and so do end-to-end modules: compute_config.use_end2end = true')
end

-- Writes the programs of all ranks, without any other rank.
local function compile(module, source, args, chosen, config)
  local line = pipeline.new(source, chosen)
  for _, training in ipairs(config.inference_only and { false } or { true, false }) do
    local graph = line:graph(args, training)
    refuse_stages(line:make_plan(graph), module, config)
    for i, file in ipairs(line:write_all(graph)) do
      log.info('Program of rank %d: %s', i - 1, file.path or '-')
    end
  end
end

local function instance(engine, module, config, draws)
  return Parallel {
    engine = engine, label = module.class_name, end2end = config.use_end2end,
    inference_only = config.inference_only, aliases = module:tied_names(), draws = draws,
  }
end

--- Makes a module, or a class of modules, parallel.
---@param what nnscaler.nn.Module|table
---@param dummy_args table arguments of forward by name, or a list; only shapes, dtypes and which
---  tensors require gradients count
---@param policy string|function as pas_policy of a job
---@param compute_config nnscaler.ComputeConfig
---@param opts? nnscaler.ParallelizeOpts
---@return nnscaler.ParallelModule|table|nil of a module a module, of a class a class
return function(what, dummy_args, policy, compute_config, opts)
  local config = configs.compute(compute_config)
  opts = configs.options(opts, known)
  configs.policy(policy, 'library.parallelize')
  local kind = kind_of(what)
  if kind == 'module' and rawget(what, '_parallel') then return what end
  local module = make(what, kind, opts)
  refuse_nested(module)
  if opts.module_dtype then module:to(opts.module_dtype) end
  local names = arguments.names(module)
  local args = arguments.list(module, names, dummy_args, config.use_end2end)
  local chosen = engines.options(module, policy, config, opts)
  local source = sources.of(module, { arg_names = names, loss = config.use_end2end or false })
  if opts.load_module == false then
    return compile(module, source, args, chosen, config)
  end

  local draws = opts.init_module_params ~= false
  local engine = engines.new(source, chosen, draws)
  engine.template = args[1] -- of an end-to-end module: what idle units run
  local cache = config.inference_only and engine.evaluation or engine.training
  cache:get(args, not config.inference_only)
  refuse_stages(engine.sharing and engine.sharing.plan, module, config)
  if kind == 'module' then
    local made = instance(engine, module, config, draws)
    if opts.broadcast_strategy == 'all' then checkpoint.broadcast_weights(made, true) end
    return made
  end
  return setmetatable({ class_name = 'Parallel' .. module.class_name }, {
    __newindex = function(_, key)
      fail('usage', 'library.class', ("'%s' set in the parallel class of %s, whose programs are "
        .. 'made'):format(tostring(key), module.class_name), 'set it in the class before')
    end,
    __call = function(_, given)
      local drawn = draws
      if given and given.init_params ~= nil then drawn = given.init_params end
      return instance(engine:twin(engines.take(drawn)), module, config, drawn)
    end,
  })
end
