--- What makes modules of hand-written loops parallel is told by a compute_config and options; here
--- they are checked.
local arguments = require 'nnscaler.library.arguments'
local fail = require 'nnscaler.fail'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs

local M = {}

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

local known = { plan_ngpus = 'number', runtime_ngpus = 'number', use_end2end = 'boolean',
  inference_only = 'boolean', pas_config = 'table', use_zero = 'number',
  zero_ngroups = 'number', zero_use_reduce_scatter = 'boolean',
  zero_param_level_sharding = 'boolean', reducer_bucket_cap_mb = 'number',
  use_async_reducer = 'boolean', constant_folding = 'boolean', trace_strategy = 'string',
  user_config = 'table' }

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

--- A compute_config with a number for a use_zero of true or false.
---@param given nnscaler.ComputeConfig|nil
---@return nnscaler.ComputeConfig
function M.compute(given)
  local config = arguments.table('compute_config', plain_zero(given or {}), known)
  check_config(config)
  return config
end

--- Options by their known keys.
---@param given table|nil
---@param keys table<string, string> key → type
---@return table
function M.options(given, keys)
  local opts = arguments.table('opts', given or {}, keys)
  check_choice(opts, 'reuse')
  check_choice(opts, 'broadcast_strategy')
  return opts
end

---@param policy any
---@param area string of the error
function M.policy(policy, area)
  if type(policy) == 'string' or type(policy) == 'function' then return end
  fail('usage', area, ('the policy is a %s; expected a name or a function'):format(type(policy)))
end

return M
