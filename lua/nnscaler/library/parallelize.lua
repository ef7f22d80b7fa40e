--- nnscaler.parallelize: a module, or a class of modules, made parallel by the engine that trains
--- jobs, for use in a hand-written loop.
local Parallel = require 'nnscaler.library.module'
local Program = require 'nnscaler.runtime.program'
local arguments = require 'nnscaler.library.arguments'
local checkpoint = require 'nnscaler.library.checkpoint'
local kinds = require 'nnscaler.nn.kinds'
local fail = require 'nnscaler.fail'
local log = require('nnscaler.log').logger 'nnscaler.library'
local options = require 'nnscaler.options'
local pipeline = require 'nnscaler.pipeline'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local sources = require 'nnscaler.source'

---@class nnscaler.ComputeConfig
---@field plan_ngpus? integer devices of a plan (a scale unit); as in a job if not given
---@field runtime_ngpus? integer all ranks; the ranks of the run if not given
---@field use_end2end? boolean forward takes one sample and returns the loss first
---@field inference_only? boolean no backward
---@field reducer_bucket_cap_mb? number most MiB of gradients that one sum takes; 25 by default
---@field user_config? table values of your own that programs depend on
---@field pas_config? table keys of the policy
---@field use_zero? boolean|integer 0 to 3, as in a job; true is 1
---@field zero_ngroups? integer
---@field zero_use_reduce_scatter? boolean
---@field zero_param_level_sharding? boolean for optimizers that need whole weights

---@class nnscaler.ParallelizeOpts
---@field gen_savedir? string folder of generated programs, './.nnscaler'; '' keeps none
---@field reuse? 'match'|'override'|'moo'|'graph' as gen_reuse of a job; 'match' unless told
---@field broadcast_strategy? 'none'|'code'|'no_weights'|'all' as of a job; 'code' unless told
---@field instance_name? string tells programs of one class with different plans apart
---@field load_module? boolean false: write the programs of all ranks and return nothing
---@field module_dtype? string given to floating parameters and buffers before tracing
---@field module_fn? fun(): nnscaler.nn.Module makes a module of the class
---@field init_module_params? boolean false: no values are drawn; a state dict gives them

local known = {
  compute_config = { plan_ngpus = 'number', runtime_ngpus = 'number', use_end2end = 'boolean',
    inference_only = 'boolean', pas_config = 'table', use_zero = 'number',
    zero_ngroups = 'number', zero_use_reduce_scatter = 'boolean',
    zero_param_level_sharding = 'boolean', reducer_bucket_cap_mb = 'number',
    use_async_reducer = 'boolean', constant_folding = 'boolean', trace_strategy = 'string',
    user_config = 'table' },
  opts = { gen_savedir = 'string', reuse = 'string', instance_name = 'string',
    broadcast_strategy = 'string', load_module = 'boolean', module_dtype = 'string',
    module_fn = 'function', init_module_params = 'boolean' },
}
local choices = {
  reuse = { 'match', 'override', 'moo', 'graph' },
  broadcast_strategy = { 'none', 'code', 'no_weights', 'all' },
}

local function check_choice(opts, key)
  if opts[key] == nil then return end
  for _, choice in ipairs(choices[key]) do
    if opts[key] == choice then return end
  end
  fail('usage', 'library.' .. key, ("%s is '%s'; expected %s"):format(key, opts[key],
    table.concat(choices[key], ', ')))
end

-- Keys of other systems that mean nothing here, as src/job/resolve.cpp has them.
local kNeutral = {
  { 'constant_folding', false, 'numbers of Lua are constants of the program already, and tensors '
    .. 'never are' },
  { 'trace_strategy', 'cuda_run_cpu_offload', 'tracing runs no operator, so it has no strategy' },
  { 'use_async_reducer', false, 'gradients are summed when the optimizer asks for them' },
}

local function check_neutral(config)
  for _, entry in ipairs(kNeutral) do
    local key, value, reason = unpack(entry)
    if config[key] ~= nil and config[key] ~= value then
      fail('usage', 'library.compute_config', ('%s is %s; only %s is taken: %s'):format(key,
        tostring(config[key]), tostring(value), reason), 'leave it out')
    end
  end
  local cap = config.reducer_bucket_cap_mb
  if cap and (cap < 0.001 or cap > 1e6) then
    fail('usage', 'library.compute_config', ('reducer_bucket_cap_mb is %s; expected 0.001 to 1e6')
      :format(tostring(cap)))
  end
end

local function check_config(config)
  check_neutral(config)
  local plan, run = config.plan_ngpus, config.runtime_ngpus
  for _, key in ipairs { 'plan_ngpus', 'runtime_ngpus', 'zero_ngroups' } do
    local n = config[key]
    if n and (n < 1 or n % 1 ~= 0) then
      fail('usage', 'library.compute_config', ('%s is %s; expected a whole number from 1 on')
        :format(key, tostring(n)))
    end
  end
  local zero = config.use_zero
  if zero and (zero < 0 or zero > 3 or zero % 1 ~= 0) then
    fail('usage', 'library.compute_config', ('use_zero is %s; expected 0 to 3, or true or false')
      :format(tostring(zero)))
  end
  if plan and run and run % plan ~= 0 then
    fail('usage', 'library.compute_config', ('runtime_ngpus is %d; expected a multiple of '
      .. 'plan_ngpus = %d'):format(run, plan))
  end
end

-- The configuration with a number for a use_zero of true or false.
local function plain_zero(config)
  if type(config) ~= 'table' or type(config.use_zero) ~= 'boolean' then return config end
  local out = {}
  for key, value in sorted_pairs(config) do out[key] = value end
  out.use_zero = config.use_zero and 1 or 0
  return out
end

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

local function options_of(module, policy, config, opts)
  local world = require('nnscaler._C.comm').current()
  local size = opts.load_module ~= false and (world and world:size() or 1)
    or config.runtime_ngpus or config.plan_ngpus
  if not size then
    fail('usage', 'library.load_module', 'load_module = false without '
      .. 'compute_config.runtime_ngpus; expected the number of ranks')
  end
  local pas_config = config.pas_config or {}
  local sizes = options.sizes(policy, config, size, pas_config)
  return options.new {
    policy = policy, pas_config = pas_config, plan_ngpus = sizes.plan_ngpus,
    runtime_ngpus = sizes.runtime_ngpus, whole = sizes.whole,
    micro_batches = pas_config.pipeline_nmicros,
    settings = options.settings({ pas_policy = policy, pas_config = pas_config,
      compute_config = config }, sizes),
    folder = opts.gen_savedir or './.nnscaler', reuse = opts.reuse or 'match',
    -- Weights have no values yet where programs are sent.
    strategy = opts.broadcast_strategy ~= 'all' and opts.broadcast_strategy or 'code',
    name = module.class_name, instance_name = opts.instance_name,
    bucket_cap_mb = config.reducer_bucket_cap_mb,
    embedded = not config.use_end2end, zero = options.zero(config),
  }
end

-- Writes the programs of all ranks, without any other rank.
local function compile(source, args, chosen, inference_only)
  local line = pipeline.new(source, chosen)
  for _, training in ipairs(inference_only and { false } or { true, false }) do
    local graph = line:graph(args, training)
    line:make_plan(graph)
    for i, file in ipairs(line:write_all(graph)) do
      log.info('Program of rank %d: %s', i - 1, file.path or '-')
    end
  end
end

-- An engine whose weights are parts of the module's, with values or to be drawn.
local function take(draws)
  return function(_, parameter, start, shape)
    return Parallel.part_of(parameter, start, shape,
      draws or parameter.is_buffer and not parameter.persistent)
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
  local config = arguments.table('compute_config', plain_zero(compute_config or {}),
    known.compute_config)
  opts = arguments.table('opts', opts or {}, known.opts)
  check_config(config)
  if type(policy) ~= 'string' and type(policy) ~= 'function' then
    fail('usage', 'library.parallelize', ('the policy is a %s; expected a name or a function')
      :format(type(policy)))
  end
  check_choice(opts, 'reuse')
  check_choice(opts, 'broadcast_strategy')
  local kind = kind_of(what)
  if kind == 'module' and rawget(what, '_parallel') then return what end
  local module = make(what, kind, opts)
  refuse_nested(module)
  if opts.module_dtype then module:to(opts.module_dtype) end
  local names = arguments.names(module)
  local args = arguments.list(module, names, dummy_args, config.use_end2end)
  local chosen = options_of(module, policy, config, opts)
  local source = sources.of(module, { arg_names = names, loss = config.use_end2end or false })
  if opts.load_module == false then
    return compile(source, args, chosen, config.inference_only)
  end

  local draws = opts.init_module_params ~= false
  local engine = Program.new(source, chosen, nil, take(draws))
  engine.template = args[1] -- of an end-to-end module: what idle units run
  local cache = config.inference_only and engine.evaluation or engine.training
  cache:get(args, not config.inference_only)
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
      return instance(engine:twin(take(drawn)), module, config, drawn)
    end,
  })
end
