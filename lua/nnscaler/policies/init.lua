--- Policies: functions (graph, cfg) that say what is split, where it runs and in which order. A
--- policy is a builtin name, a `require` path, or a function in the recipe.
local fail = require 'nnscaler.fail'
local handle = require 'nnscaler.policies.handle'

local M = {}

M.builtin = { 'dp', 'tp', 'pp', 'data', 'hybrid', 'fsdp' }

---Returns the policy function that `name` stands for.
---@param policy string|function builtin name, `require` path, or the function itself
---@return function policy
---@return string name
function M.resolve(policy)
  if type(policy) == 'function' then
    local where = debug.getinfo(policy, 'S')
    return policy, where.short_src .. ':' .. where.linedefined
  end
  for _, name in ipairs(M.builtin) do
    if name == policy then return require('nnscaler.policies.' .. name), name end
  end
  local ok, found = pcall(require, policy)
  if not ok then
    fail('usage', 'policies.resolve', ("no policy '%s'"):format(policy),
      'the builtin ones are ' .. table.concat(M.builtin, ', ') .. '; others are found by require')
  end
  if type(found) ~= 'function' then
    fail('usage', 'policies.resolve',
      ("policy '%s' is a %s; expected a function (graph, cfg)"):format(policy, type(found)))
  end
  return found, policy
end

---@class nnscaler.PolicyConfig
---@field plan_ngpus integer devices a plan spans
---@field runtime_ngpus integer ranks; a multiple of plan_ngpus
---@field pas_config table keys of the policy
---@field micro_batches integer micro-batches of a unit a step

---Runs a policy on a graph.
---@param graph userdata nnscaler.Graph
---@param policy string|function
---@param cfg nnscaler.PolicyConfig
---@return userdata plan nnscaler.Plan
function M.run(graph, policy, cfg)
  local fn, name = M.resolve(policy)
  local g = handle.new(graph, cfg)
  fn(g, cfg)
  return g:finish(name)
end

return M
