--- Policies: functions (graph, cfg) that say what is split, where it runs and in which order. A
--- policy is a builtin name, a `require` path, a file (FILE.lua returns the function), or a
--- function in the recipe. A file PLAN.json is a plan that was made before.
local base = require 'nnscaler._C.base'
local core = require 'nnscaler._C.plan'
local fail = require 'nnscaler.fail'
local handle = require 'nnscaler.policies.handle'
local keys = require 'nnscaler.policies.keys'
local list = require 'nnscaler.policies.list'
local log = require('nnscaler.log').logger 'nnscaler.policies'
local recompute = require 'nnscaler.policies.recompute'

local M = {}

M.builtin = { 'dp', 'tp', 'pp', 'data', 'hybrid', 'fsdp', 'megatron', 'autodist', 'rannc' }

---Whether a policy is a plan that was made before.
---@param policy string|function|nil
---@return boolean
function M.is_plan_file(policy)
  return type(policy) == 'string' and policy:match('%.json$') ~= nil
end

local function read_plan(path, ...)
  return core.from_json(base.file_read(path, 'plan.load'), ...)
end

--- The text of a plan's file, with the hardware that it was made for.
---@param plan userdata nnscaler.Plan
---@param hardware string|nil
---@return string
function M.text_for(plan, hardware)
  local text = plan:json()
  if not hardware then return text end
  return (text:gsub('^{', function() return ('{"hardware":%s,'):format(base.json_encode(hardware))
  end))
end

-- What is fast on one machine may not be on another, nor fit.
local function compare_hardware(path, cfg)
  local made = base.json_decode(base.file_read(path, 'plan.load')).hardware
  if not made then return end
  local on_cpu = (cfg.device or 'cpu'):match '^%a+' == 'cpu'
  local here = cfg.hardware or on_cpu and (made == 'measured' and made or 'cpu')
  if not here and made ~= 'cpu' or here == made then return end
  log.warning("the plan of %s was made for hardware '%s'; it is used on '%s'", path, made,
    here or cfg.device)
end

-- A plan says itself what rests in shards.
local function check_zero(plan, zero)
  local level = plan:info().zero
  if zero and zero.level and zero.level ~= level then
    fail('usage', 'plan.zero', ('compute_config.use_zero is %d; the plan has %d'):format(zero.level,
      level), 'leave it out, or make a plan with it: nnscaler plan JOB --plan-out FILE')
  end
end

---How many devices the policy asks for, where it says so itself: a plan file does.
---@param policy string|function|nil
---@return integer|nil
function M.devices(policy)
  return M.is_plan_file(policy) and read_plan(policy):info().plan_ngpus or nil
end

---@param policy string|function|nil
---@return boolean
function M.is_builtin(policy)
  for _, name in ipairs(M.builtin) do
    if name == policy then return true end
  end
  return false
end

local function expect_function(found, policy)
  if type(found) ~= 'function' and not (getmetatable(found) or {}).__call then
    fail('usage', 'policies.resolve',
      ("policy '%s' is a %s; expected a function (graph, cfg)"):format(policy, type(found)))
  end
  return found, policy
end

---Returns the policy function that `name` stands for.
---@param policy string|function builtin name, `require` path, FILE.lua, or the function itself
---@return function policy
---@return string name
function M.resolve(policy)
  if type(policy) == 'function' then
    local where = debug.getinfo(policy, 'S')
    return policy, where.short_src .. ':' .. where.linedefined
  elseif type(policy) ~= 'string' then
    return expect_function(policy, 'of the recipe')
  end
  if M.is_builtin(policy) then return require('nnscaler.policies.' .. policy), policy end
  if policy:match('%.lua$') then
    local chunk, message = loadfile(policy)
    if not chunk then fail('usage', 'policies.resolve', message) end
    return expect_function(chunk(), policy)
  end
  local ok, found = pcall(require, policy)
  if not ok then
    fail('usage', 'policies.resolve', ("no policy '%s'"):format(policy),
      'the builtin ones are ' .. table.concat(M.builtin, ', ') .. '; others are found by require, '
      .. 'or are files: FILE.lua, PLAN.json')
  end
  return expect_function(found, policy)
end

---Raises when a job's pas_config has a key that its policy does not take, also where the policy
---will not run, on one device.
---@param policy string|function
---@param config? table pas_config
function M.check(policy, config)
  if M.is_plan_file(policy) then
    keys.check_config(policy, { keys = {} }, config or {})
    for _, key in ipairs { 'recompute_modules', 'offload_modules' } do
      if config and config[key] then
        fail('usage', 'policies.' .. key:match '^%a+', ("pas_config.%s is given, and '%s' says "
          .. 'itself what is %s'):format(key, policy, key == 'recompute_modules' and 'recomputed'
          or 'offloaded'), 'leave it out, or make the plan with it')
      end
    end
  else
    local fn, name = M.resolve(policy)
    keys.check_config(name, fn, config or {})
  end
end

---@class nnscaler.PolicyConfig
---@field plan_ngpus integer devices a plan spans
---@field runtime_ngpus integer ranks; a multiple of plan_ngpus
---@field pas_config table keys of the policy
---@field beat? fun() to be called now and then in long work: other ranks wait
---@field note? fun(text: string|fun():string) takes what a report says of the search
---@field micro_batches integer micro-batches of a unit a step
---@field device? string that programs are made for
---@field hardware? string that the plan is for, where the command line says it
---@field optimizer? table of the job
---@field bucket_cap_mb? number MiB of gradients that one all-reduce sums
---@field zero? nnscaler.ZeroOptions what rests in shards
---@field undivided? string[] weights that the optimizer has to have whole
---@field embedded? boolean whether the graph is a module inside a hand-written model

---Runs a policy on a graph, or loads a plan and checks that it is for the graph and the devices. A
---policy calls the graph's acts, or returns a list with an entry for each operator (list.lua).
---@param graph userdata nnscaler.Graph
---@param policy string|function
---@param cfg nnscaler.PolicyConfig
---@return userdata plan nnscaler.Plan
function M.run(graph, policy, cfg)
  if M.is_plan_file(policy) then
    local plan = read_plan(policy, cfg.plan_ngpus, cfg.runtime_ngpus)
    plan:match(graph)
    check_zero(plan, cfg.zero)
    compare_hardware(policy, cfg)
    return plan
  end
  local fn, name = M.resolve(policy)
  keys.check_config(name, fn, cfg.pas_config or {})
  local g = handle.new(graph, cfg)
  local entries = fn(g, cfg)
  if entries ~= nil then list.apply(g, entries) end
  recompute.apply(g, cfg.pas_config or {})
  return g:finish(name)
end

return M
