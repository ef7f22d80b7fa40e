--- Makes everything a run needs, in this order: model and engine, data, optimizer, schedule,
--- loggers, hooks; then resumes.
local batches = require 'nnscaler.trainer.batches'
local component = require 'nnscaler.trainer.component'
local device_map = require 'nnscaler.trainer.device_map'
local door = require 'nnscaler._C.tensor'
local elastic = require 'nnscaler.trainer.elastic'
local explain = require 'nnscaler.explain'
local fail = require 'nnscaler.fail'
local format = require 'nnscaler.format'
local history = require 'nnscaler.trainer.history'
local hooks = require 'nnscaler.hooks'
local init_from = require 'nnscaler.trainer.init_from'
local jobs = require 'nnscaler.job'
local loaders = require 'nnscaler.trainer.loaders'
local loggers = require 'nnscaler.loggers'
local loss_scale = require 'nnscaler.trainer.loss_scale'
local memory = require 'nnscaler.trainer.memory'
local mixed = require 'nnscaler.library.mixed'
local offload = require 'nnscaler.trainer.offload'
local optim = require 'nnscaler.optim'
local options = require 'nnscaler.options'
local parts = require 'nnscaler.trainer.parts'
local phases = require 'nnscaler.trainer.phases'
local pipeline = require 'nnscaler.pipeline'
local policies = require 'nnscaler.policies'
local precision = require 'nnscaler.precision'
local prediction = require 'nnscaler.trainer.prediction'
local profile = require 'nnscaler.trainer.profile'
local progress = require 'nnscaler.trainer.progress'
local ranks = require 'nnscaler.ranks'
local resume = require 'nnscaler.trainer.resume'
local save_dir = require 'nnscaler.trainer.save_dir'
local sample_of = require 'nnscaler.runtime.sample'
local schedules = require 'nnscaler.schedules'
local sharing = require 'nnscaler.runtime.sharing'
local slots = require 'nnscaler.optim.slots'
local sources = require 'nnscaler.source'
local store = require 'nnscaler.runtime.store'
local width = require 'nnscaler.trainer.width'

local M = {}

local what = {
  key = 'model.type', prefix = 'nnscaler.models.',
  builtin = { 'bert', 'gpt', 'llama', 'mlp', 'resnet', 'swin', 'unet', 'vit' },
  expects = 'a class of models',
}

--- Makes the model of a job.
---@param job nnscaler.Job
---@return nnscaler.nn.Module
function M.model(job)
  local model = component(what, job.model)
  if type(model) ~= 'table' or type(model.named_parameters) ~= 'function' then
    fail('usage', 'trainer.model', ('the model is a %s; expected an nn.Module'):format(type(model)))
  end
  return model
end

-- Settings of LibTorch that hold for the whole process. On a GPU some operators have no
-- deterministic form: LibTorch warns of those.
local function set_process(t)
  local job = t.args
  t.map = device_map.new(job)
  door.set_num_threads(t.map.threads)
  door.set_deterministic(job.deterministic ~= false, job.device ~= nil and job.device ~= 'cpu')
end

--- The dtype that the job gives to floating parameters; nil: as the model made them.
---@param job nnscaler.Job
---@return string|nil
function M.dtype(job) return precision.of(job.precision).parameter end

-- Casts the floating tensors of a sample.
local function cast_sample(sample, dtype)
  return sample_of.map(sample, function(tensor)
    if tensor:is_floating_point() and tensor.dtype ~= dtype then return tensor:to(dtype) end
    return tensor
  end)
end

-- Casts the samples of a loader.
local function cast_loader(loader, dtype)
  if not loader then return nil end
  return setmetatable({ get = function(_, n) return cast_sample(loader:get(n), dtype) end },
    { __index = loader })
end

--- Gives the model the precision that the job asks for.
---@param model nnscaler.nn.Module
---@param job nnscaler.Job
---@return nnscaler.Precision
function M.cast_model(model, job)
  local wanted = precision.of(job.precision)
  precision.apply(model, wanted, job.device)
  return wanted
end

local function check_precision(job)
  local wanted = precision.of(job.precision)
  if parts.of(job) and (wanted.autocast or wanted.scaled) then
    fail('usage', 'trainer.precision', 'autocast and a scaled loss need a program of the whole '
      .. 'model; expected precision none, fp64, fp32 or bf16 beside model.parallel_modules',
      "for autocast call T.autocast('bfloat16', …) in the forward of each")
  end
end

local function set_precision(t)
  local wanted = M.cast_model(t.model, t.args)
  if wanted.scaled then t.loss_scale = loss_scale.new() end
  if not wanted.input then return end
  for _, name in ipairs { 'train_loader', 'val_loader', 'test_loader' } do
    t[name] = cast_loader(t[name], wanted.input)
  end
end

--- The micro-batch that programs are made for first.
---@param t nnscaler.Trainer
---@return any
function M.first_sample(t)
  local make = t.args.dummy_sample_gen_fn
  if not make then return t.train_loader:get(0) end
  local sample = make(t.args)
  if sample == nil then
    fail('usage', 'trainer.dummy_sample', 'dummy_sample_gen_fn returned nothing; expected a '
      .. 'micro-batch')
  end
  local dtype = precision.of(t.args.precision).input
  return dtype and cast_sample(sample, dtype) or sample
end

local function make_engine(t)
  if parts.of(t.args) then
    t.engine, t.engine_name = mixed.new(t.model, t.args, t.sharing), 'parallel modules'
    return
  end
  local name = t.args.eager and 'eager' or 'program'
  if t.args.eager and t.sharing then
    fail('usage', 'trainer.eager', ('eager=true runs on one device; the run has %d ranks')
      :format(t.world_size), 'leave out eager, or run with one rank')
  end
  t.engine = require('nnscaler.runtime.' .. name).new(t.model, t.args, t.sharing)
  if t.sharing or not t.args.eager then
    local sample = t.first or M.first_sample(t)
    t.first = nil
    t.sample_bytes = phases.sample_bytes(sample)
    if t.sharing then t.engine:prepare(sample) else t.engine:compile(sample, true) end
  end
  t.engine_name = name
end

local function count_parameters(engine)
  local all, trainable = 0, 0
  for _, parameter in ipairs(engine.parameters) do
    local n = parameter.data:numel()
    all = all + n
    if parameter.requires_grad then trainable = trainable + n end
  end
  return all, trainable
end

local function describe(t)
  t.log.info('Job %s:\n%s', t.args:file(), (t.args:text():gsub('\n$', '')))
  local all, trainable = count_parameters(t.engine)
  local frozen = all > trainable and (', %s of them frozen'):format(format.grouped(all - trainable))
    or ''
  t.log.info('Device: %s, threads: %d, engine: %s', t.args.device or 'cpu',
    door.get_num_threads(), t.engine_name)
  t.log.info('Parameters: %s%s', format.grouped(all), frozen)
  if t.sharing then
    t.log.info('Ranks: %d, policy: %s, %d device(s) a plan, %d scale unit(s), global batch: %d '
      .. 'samples', t.world_size, tostring(t.args.pas_policy), t.sharing.plan_ngpus, t.units,
      t.span.per_step * t.args.micro_batch_size)
    t.map:describe(t.log)
  end
end

-- Of a policy that searches, what it found.
local function report(t)
  local policy = t.args.pas_policy
  if t.rank ~= 0 or t.engine_name ~= 'program' or policy ~= 'autodist' and policy ~= 'rannc' then
    return
  end
  local line, graph = explain.line_of(t.engine)
  t.log.info('Report of the plan:\n%s', explain.text(explain.of(line, graph)))
end

-- Ids that the model has no row for would be found in the middle of the run, or never.
local function check_vocabulary(model, dataset)
  local rows, ids = model.vocab, type(dataset) == 'table' and dataset.vocab
  if type(rows) == 'number' and type(ids) == 'number' and ids > rows then
    fail('data', 'trainer.data', ('the data have a vocabulary of %d, the model one of %d'):format(
      ids, rows), 'make the model with the vocabulary of the data, or prepare them with its '
      .. 'tokenizer')
  end
end

--- Makes what a program is written of: model and data.
---@param t nnscaler.Trainer
---@param units integer scale units
---@return integer micro-batches of a scale unit, a step
function M.parts(t, units)
  local job = t.args
  local accumulation = batches.accumulation(job, units)
  check_precision(job)
  offload.check(job)
  t.model = parts.of(job) and parts.make(job, M.model, M.dtype(job)) or M.model(job)
  local made = loaders.new(job, units)
  t.train_loader, t.val_loader, t.test_loader = made.train, made.val, made.test
  t.dataset = made.dataset
  check_vocabulary(t.model, t.dataset)
  t.span = batches.span(job, t.train_loader.per_epoch, accumulation * units,
    batches.schedule(job, units))
  t.horizon = t.span.total_steps
  set_precision(t)
  return accumulation
end

-- Joins the ranks under the plans of the job.
local function share(t)
  t.sharing = sharing.new(parts.sized(t.args))
  if t.sharing then
    t.rank, t.world_size = t.sharing.rank, t.sharing.size
    t.units, t.unit = t.sharing.units, t.sharing.unit
  end
end

-- Makes model and data for the devices of a plan that the job says, or that are chosen here.
local function make_parts(t)
  local job, open = t.args, width.open(t.args)
  if open then width.begin(job, ranks.world_size()) end
  share(t)
  set_process(t)
  local accumulation = M.parts(t, t.units)
  if not open then return accumulation end
  local before = t.units
  t.first = M.first_sample(t)
  t.width = width.choose(t, t.world_size, memory.each(t), t.first, t.sharing)
  width.apply(job, t.width)
  if t.world_size > 1 or not t.width.plain then t.log.info('autodist: %s', t.width.told) end
  if t.width.plain then return accumulation end
  share(t)
  if t.units == before then return accumulation end
  t.first = nil
  return M.parts(t, t.units)
end

--- Makes model, data and engine.
---@param t nnscaler.Trainer
function M.build(t)
  local job = t.args
  ranks.join(job)
  ranks.agree(job)
  if job.init_env_fn then job.init_env_fn(t) end
  profile.prepare(job)
  policies.check(job.pas_policy or 'dp', job.pas_config)
  elastic.fit(job, ranks.world_size())
  t.hardware = (job.pas_config or {}).hardware
  width.keep_to_limit(job)
  local accumulation = make_parts(t)
  if t.sharing then t.sharing.micro_batches = accumulation end
  make_engine(t)
end

-- What all ranks would take under changes of the job. Nothing is written or kept.
local function predict(t, changes)
  local all = { unpack(t.args:overrides()) }
  for _, change in ipairs(changes) do all[#all + 1] = change end
  local job = jobs.load(t.args:file(), all)
  if t.width then width.apply(job, t.width) end
  local world = options.of(job, t.world_size)
  local other = setmetatable({ args = job, seed = t.seed, log = t.log },
    getmetatable(t)) -- a trainer of which only parts are made
  world.folder = ''
  world.micro_batches = M.parts(other, world.runtime_ngpus / world.plan_ngpus)
  local line = pipeline.new(sources.of(other.model), world)
  local sample = M.first_sample(other)
  local args, n = sample_of.arguments(job, sample)
  args.n = n
  local graph = line:graph(args, true)
  line:make_plan(graph)
  local memories = {}
  local settings = phases.settings(job, line.source, world, world.micro_batches,
    phases.sample_bytes(sample))
  line:write_all(graph, function(program, rank)
    memories[rank + 1] = phases.of(job.optimizer, program, rank, settings)
  end)
  return memories
end

---@param t nnscaler.Trainer
function M.run(t)
  local job = t.args
  t.hooks = hooks.new(job.hook)
  M.build(t)
  save_dir.claim(t)
  if parts.of(job) then
    t.optimizer, t.update = t.engine:make_optimizer(job.optimizer)
    t.store = t.engine.store
  else
    t.optimizer = optim.new(job.optimizer, t.engine:optimized())
    if t.sharing then slots.check_parts(t.optimizer, t.engine:slices()) end
    offload.prepare(t)
    t.update = t.engine:step_of(t.optimizer)
    t.store = store.of_engine(t.model, t.engine, t.sharing)
  end
  -- Who looks at gradients before they are summed finds the addends of this rank.
  local hooked = t.hooks:any { 'before_sync_grad' }
  t.engine.late_sums = t.sharing ~= nil
    and (hooked or job.compute_config.use_async_reducer == false)
  if t.sharing and hooked then
    t.log.info 'before_sync_grad is hooked: gradients are summed after it, not beside backward'
  end
  t.history = history.new()
  describe(t)
  report(t)
  memory.check(t, predict)
  if not resume.run(t) then init_from.run(t) end
  t.schedule = schedules.new(job.lr_scheduler, {
    lr = t.optimizer.lr, total_steps = t.horizon, steps_per_epoch = t.span.steps_per_epoch,
    epochs = t.span:epochs(),
  })
  t.profile = profile.new(t)
  t.prediction = prediction.new(t)
  t.progress = progress.new {
    bar = job.enable_progress_bar ~= false and t.rank == 0, log = t.log,
    every = job.log_progress_every_n_train_steps or 100, total = t.span.total_steps,
  }
  local list = {}
  if t.rank == 0 then -- metrics are the same on all ranks
    for _, item in ipairs(job.log or {}) do list[#list + 1] = item end
    if job.metrics then list[#list + 1] = { type = 'jsonl', args = { path = job.metrics } } end
  end
  t.loggers = loggers.new(list)
  for _, logger in ipairs(t.loggers) do logger:setup(t) end
  t.hooks:fire('after_setup', t)
end

return M
