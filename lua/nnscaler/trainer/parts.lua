--- `model.parallel_modules`: classes inside of the model that are made parallel. While the model is
--- made, each of them makes parallel modules; all share the programs of their class.
local fail = require 'nnscaler.fail'
local options = require 'nnscaler.options'
local parallelize = require 'nnscaler.library.parallelize'
local resolve = require 'nnscaler.resolve'
local sorted = require 'nnscaler.sorted'

local M = {}

--- The entries of a job; nil where the whole model is one program.
---@param job nnscaler.Job
---@return table[]|nil
function M.of(job)
  local model = job.model
  if job.eager or type(model) ~= 'table' or getmetatable(model) ~= nil then return nil end
  local list = model.parallel_modules
  return list and #list > 0 and list or nil
end

--- Raises for a job with such entries, where a model has to be one program.
---@param job nnscaler.Job
---@param area string
function M.refuse(job, area)
  if not M.of(job) then return end
  fail('usage', area, 'the job has model.parallel_modules; expected a model that is one program',
    'model.parallel_modules! leaves them out')
end

-- Keys of compute_config that say how a module is cut.
local kConfig = { 'plan_ngpus', 'runtime_ngpus', 'use_zero', 'zero_ngroups',
  'zero_use_reduce_scatter', 'zero_param_level_sharding' }

local function config_of(job, entry)
  local config = {}
  for _, key in ipairs(kConfig) do config[key] = (job.compute_config or {})[key] end
  for key, value in sorted.sorted_pairs(entry.compute_config or {}) do
    if key == 'use_end2end' and value == true then
      fail('usage', 'model.parallel_modules', 'compute_config.use_end2end is true; expected false: '
        .. 'a part of a model does not make the loss', 'leave it out')
    end
    config[key] = value
  end
  return config
end

local function pas_config_of(job, entry)
  return entry.pas_config or entry.pas_policy == nil and job.pas_config or {}
end

-- The policy of an entry. The whole model's number of devices cannot be chosen for a part of it.
local function policy_of(job, entry)
  return entry.pas_policy or options.is_open(job) and 'dp' or job.pas_policy
end

--- What says how many devices a scale unit has.
---@param job nnscaler.Job
---@return table job
function M.sized(job)
  local list = M.of(job)
  if not list then return job end
  return setmetatable({ pas_policy = policy_of(job, list[1]),
    pas_config = pas_config_of(job, list[1]), compute_config = config_of(job, list[1]) },
    { __index = job })
end

--- The class of entry number i.
---@param entry table
---@param i integer
---@return table
function M.class_of(entry, i)
  local key = ('model.parallel_modules[%d].type'):format(i)
  local class = resolve({ key = key, expects = 'a class that nn.class made' }, entry.type)
  if type(class) ~= 'table' or not rawget(class, '_meta') then
    fail('usage', key, ('a %s; expected a class that nn.class made'):format(type(class)))
  end
  return class
end

local function same(a, b)
  if type(a) ~= 'table' or type(b) ~= 'table' then return a == b end
  local keys = sorted.sorted_keys(a)
  if #keys ~= #sorted.sorted_keys(b) then return false end
  for _, key in ipairs(keys) do
    if not same(a[key], b[key]) then return false end
  end
  return true
end

-- Makes the parallel class of an entry.
local function parallel_of(job, entry, class, i, opts)
  local make = entry.forward_args_gen_fn
  if type(make) == 'string' then
    make = resolve({ key = ('model.parallel_modules[%d].forward_args_gen_fn'):format(i),
      expects = 'a function' }, make)
  end
  if type(make) ~= 'function' then
    fail('usage', ('model.parallel_modules[%d].forward_args_gen_fn'):format(i), ('a %s; expected '
      .. 'function(job) that returns arguments of %s.forward'):format(type(make), class.class_name))
  end
  local reuse = entry.gen_reuse or job.gen_reuse or 'auto'
  local config = config_of(job, entry)
  config.use_end2end = nil
  config.pas_config = pas_config_of(job, entry)
  local all = { gen_savedir = entry.gen_savedir or job.gen_savedir,
    reuse = reuse == 'auto' and 'moo' or reuse,
    broadcast_strategy = entry.broadcast_strategy or job.broadcast_strategy,
    instance_name = entry.instance_name or job.instance_name,
    module_fn = function() return class(entry.args) end }
  for key, value in sorted.sorted_pairs(opts) do all[key] = value end
  return parallelize(class, make(job), policy_of(job, entry), config, all)
end

local function check_unique(classes, model)
  local seen = {}
  for i, class in ipairs(classes) do
    if seen[class] or class == model then
      fail('usage', ('model.parallel_modules[%d].type'):format(i), ("'%s' is %s"):format(
        class.class_name, seen[class] and 'listed twice' or 'the model itself'),
        class == model and 'without parallel_modules the whole model is parallel' or nil)
    end
    seen[class] = true
  end
end

--- Makes the model, with parallel modules in the place of those of the listed classes.
---@param job nnscaler.Job
---@param make fun(job: nnscaler.Job): nnscaler.nn.Module
---@param dtype string|nil of floating parameters
---@return nnscaler.nn.Module
function M.make(job, make, dtype)
  local classes, parallel = {}, {}
  for i, entry in ipairs(M.of(job)) do classes[i] = M.class_of(entry, i) end
  check_unique(classes, type(job.model.type) == 'table' and job.model.type or nil)
  for i, entry in ipairs(M.of(job)) do
    parallel[i] = parallel_of(job, entry, classes[i], i, { module_dtype = dtype })
  end
  local before, counts = {}, {}
  for i, class in ipairs(classes) do
    local meta, args = getmetatable(class), M.of(job)[i].args
    before[i], counts[i] = meta.__call, 0
    meta.__call = function(called, ...)
      if called ~= class then return before[i](called, ...) end
      if select('#', ...) > 1 or not same((...), args) then
        fail('usage', ('model.parallel_modules[%d].args'):format(i), ("the model makes a '%s' with "
          .. 'other arguments than these; programs are those of one module'):format(
          class.class_name), 'a class of modules takes one table of arguments: list it with them')
      end
      counts[i] = counts[i] + 1
      return parallel[i]()
    end
  end
  local ok, model = pcall(make, job)
  for i, class in ipairs(classes) do getmetatable(class).__call = before[i] end
  if not ok then error(model, 0) end
  for i, class in ipairs(classes) do
    if counts[i] == 0 then
      fail('usage', ('model.parallel_modules[%d].type'):format(i), ("the model makes no '%s'")
        :format(class.class_name))
    end
  end
  return model
end

--- Writes the programs of all ranks, for each class.
---@param job nnscaler.Job
---@param ranks integer
---@param dtype string|nil of floating parameters
function M.compile(job, ranks, dtype)
  local config = { runtime_ngpus = ranks }
  for key, value in sorted.sorted_pairs(job.compute_config or {}) do config[key] = value end
  local sized = setmetatable({ compute_config = config }, { __index = job })
  for i, entry in ipairs(M.of(job)) do
    parallel_of(sized, entry, M.class_of(entry, i), i, { load_module = false,
      module_dtype = dtype })
  end
end

return M
