--- What programs are made with and run under, typed: read from a job, or given by a library call.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local keys = require 'nnscaler._C.job'
local policies = require 'nnscaler.policies'
local products = require 'nnscaler.products'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs

local M = {}

---@class nnscaler.Options
---@field policy string|function as pas_policy of a job
---@field pas_config table keys of the policy
---@field plan_ngpus integer devices of a plan
---@field runtime_ngpus integer ranks
---@field whole boolean no operator is cut, and none is recomputed or offloaded
---@field micro_batches integer of a scale unit, a step
---@field settings string what programs depend on, in one line, as their files keep it
---@field folder string of generated programs; '' keeps none
---@field reuse string as gen_reuse of a job
---@field strategy string as broadcast_strategy of a job
---@field name? string of the programs' folder; by default that of the source
---@field instance_name? string put behind the name
---@field optimizer? table of the job: what it keeps counts in plans that are searched
---@field hardware? string that plans are searched for, as `nnscaler plan --hardware` names it
---@field embedded boolean whether the model is a module inside a hand-written one
---@field device string
---@field seed integer
---@field max_programs? integer kept at a time, one for each shape of the inputs
---@field bucket_cap_mb? number most MiB of gradients that one all-reduce sums
---@field zero nnscaler.ZeroOptions what rests in shards
---@field products? table which kernels make matrix products: products.choice; nil: ATen's
---@field hooked boolean whether hooks may change the model in a run
---@field forward_args? fun(sample): any ... arguments of forward for a sample
local Options = {}
Options.__index = Options

---@class nnscaler.ZeroOptions
---@field level? integer 0 to 3, as compute_config.use_zero; nil: what the policy says
---@field groups integer of scale units
---@field scatter boolean whether the step scatters gradients at level 1
---@field undivided boolean whether each weight's slots lie on one rank
---@field on_host { slots: boolean, gradients: boolean } what rests in memory of the host

--- What a compute_config says of shards.
---@param config table
---@return nnscaler.ZeroOptions
function M.zero(config)
  local offload = config.zero_offload or 'none'
  return { on_host = { slots = offload ~= 'none', gradients = offload == 'all' },
    level = config.use_zero, groups = config.zero_ngroups or 1,
    scatter = config.zero_use_reduce_scatter or false,
    undivided = config.zero_param_level_sharding or false }
end

local required = { zero = 'table', policy = true, pas_config = 'table', plan_ngpus = 'number',
  runtime_ngpus = 'number', whole = 'boolean', micro_batches = 'number', settings = 'string',
  folder = 'string', reuse = 'string', strategy = 'string', embedded = 'boolean',
  device = 'string', seed = 'number', hooked = 'boolean' }
local optional = { name = 'string', instance_name = 'string', optimizer = true, hardware = 'string',
  bucket_cap_mb = 'number', forward_args = true,
  max_programs = 'number', products = 'table' }

local function check(fields)
  for key, value in sorted_pairs(fields) do
    local kind = required[key] or optional[key]
    if not kind or kind ~= true and type(value) ~= kind then
      fail('internal', 'options', ('%s is a %s; expected %s'):format(key, type(value),
        kind or 'no such option'))
    end
  end
  for key in sorted_pairs(required) do
    if fields[key] == nil then fail('internal', 'options', key .. ' is missing') end
  end
  return fields
end

local function plain(value)
  local kind = type(value)
  if kind == 'string' or kind == 'number' or kind == 'boolean' then return value end
  if kind ~= 'table' then return nil end
  local ok, text = pcall(base.json_encode, value)
  return ok and base.json_decode(text) or nil
end

--- The settings that programs depend on, in one line.
---@param job table values by the keys of a job
---@param world? { plan_ngpus: integer, runtime_ngpus: integer } as they are after defaults
---@return string
function M.settings(job, world)
  local out = {}
  for _, key in ipairs(keys.keys()) do
    if key.programs then
      local value = job
      for part in key.path:gmatch '[^.]+' do
        if type(value) == 'table' then value = value[part] else value = nil end
      end
      if type(value) ~= 'table' or next(value) then out[key.path] = plain(value) end
    end
  end
  out['compute_config.plan_ngpus'] = world and world.plan_ngpus or 1
  out['compute_config.runtime_ngpus'] = world and world.runtime_ngpus or 1
  return base.json_encode(out)
end

--- How many devices a plan spans and how many ranks there are, after defaults; refused where plans
--- do not fill the ranks.
---@param policy string|function|nil
---@param config { plan_ngpus?: integer, runtime_ngpus?: integer }
---@param size integer ranks, where the configuration says nothing
---@param pas_config? table
---@return { plan_ngpus: integer, runtime_ngpus: integer, whole: boolean } whole: no operator is
---  cut, and none is recomputed or offloaded
function M.sizes(policy, config, size, pas_config)
  local uncut = policy == nil or policy == 'dp' or policy == 'fsdp'
  local own = pas_config or {}
  local whole = uncut and not own.recompute_modules and not own.offload_modules
  local plan_ngpus = config.plan_ngpus or (uncut and 1) or policies.devices(policy) or size
  local runtime_ngpus = config.runtime_ngpus or size
  if runtime_ngpus % plan_ngpus ~= 0 then
    fail('usage', 'runtime.ranks', config.runtime_ngpus
      and ('compute_config.runtime_ngpus is %d; expected a multiple of plan_ngpus = %d'):format(
        runtime_ngpus, plan_ngpus)
      or ('compute_config.plan_ngpus is %d, but the run has %d rank(s); expected a multiple of %d')
        :format(plan_ngpus, size, plan_ngpus),
      ('a plan spans plan_ngpus devices: nnscaler run -n %d'):format(plan_ngpus))
  end
  return { whole = whole, plan_ngpus = plan_ngpus, runtime_ngpus = runtime_ngpus }
end

--- Whether a job leaves it to the planner how many devices a plan spans.
---@param job table
---@return boolean
function M.is_open(job)
  return job.pas_policy == 'autodist' and not (job.compute_config or {}).plan_ngpus
end

--- The sizes of a job. One that leaves them open has plans of one device until they are chosen
--- (trainer/width.lua).
---@param job table
---@param size integer ranks, where the job does not say how many
---@return { plan_ngpus: integer, runtime_ngpus: integer, whole: boolean }
function M.sizes_of(job, size)
  return M.sizes(M.is_open(job) and 'dp' or job.pas_policy, job.compute_config or {}, size,
    job.pas_config)
end

--- Options from their fields; what has a default may be left out.
---@param fields table
---@return nnscaler.Options
function M.new(fields)
  local out = { pas_config = {}, micro_batches = 1, folder = '', reuse = 'auto', strategy = 'code',
    embedded = false, device = 'cpu', seed = 0, hooked = false, zero = M.zero {} }
  for key, value in sorted_pairs(fields) do out[key] = value end
  return setmetatable(check(out), Options)
end

--- The options of a job; options are returned as they are.
---@param job table|nnscaler.Options
---@param size integer ranks, where the job does not say how many
---@return nnscaler.Options
function M.of(job, size)
  if getmetatable(job) == Options then return job end
  local config = job.compute_config or {}
  local sizes = M.sizes_of(job, size)
  return M.new {
    policy = job.pas_policy or 'dp', pas_config = job.pas_config, plan_ngpus = sizes.plan_ngpus,
    runtime_ngpus = sizes.runtime_ngpus, whole = sizes.whole, micro_batches = job.micro_batches,
    settings = M.settings(job, sizes), folder = job.gen_savedir, reuse = job.gen_reuse,
    strategy = job.broadcast_strategy, device = job.device, seed = job.seed,
    bucket_cap_mb = config.reducer_bucket_cap_mb, forward_args = job.forward_args,
    zero = M.zero(config), instance_name = job.instance_name, hooked = job.hook ~= nil,
    max_programs = job.max_programs, optimizer = job.optimizer,
    products = products.choice(job.threads, job.forbid_kernels),
  }
end

return M
