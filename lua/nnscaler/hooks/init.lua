--- Hooks: functions of the user that the trainer calls at fixed places, in the order of
--- `M.names`. A hook is a table name → function; `hook` of a job is one such table, a list of
--- them, or `{ type, args }` whose module returns `function(args) → table`. Several run in order.
local fail = require 'nnscaler.fail'
local nearest = require 'nnscaler.nearest'
local resolve = require 'nnscaler.resolve'
local sorted = require 'nnscaler.sorted'

local M = {}

--- Every hook and its arguments. `step` counts from 1, epochs from 0.
M.names = {
  'after_setup', -- (trainer)
  'on_load_checkpoint', -- (trainer, checkpoint) before anything of it is used
  'after_load_checkpoint', -- (trainer, checkpoint) with what hooks put into checkpoint.user
  'on_train_start', -- (trainer)
  'on_epoch_start', -- (trainer, epoch)
  'on_step_start', -- (trainer, step)
  'before_zero_grad', -- (trainer)
  'after_zero_grad', -- (trainer)
  'on_train_step_start', -- (trainer, samples)
  'on_train_step_end', -- (trainer, outputs)
  'after_aggregate_train_step_outputs', -- (trainer, aggregated, train_loss)
  'before_sync_grad', -- (trainer) gradients are addends of this rank
  'after_sync_grad', -- (trainer) gradients are sums over the ranks
  'before_gnorm_clip', -- (trainer)
  'after_gnorm_clip', -- (trainer, gnorm)
  'before_optimizer_step', -- (trainer)
  'after_optimizer_step', -- (trainer)
  'before_log_train_metrics', -- (trainer, metrics, aggregated)
  'on_step_end', -- (trainer, step, metrics, aggregated)
  'on_val_start', -- (trainer)
  'on_val_step_start', -- (trainer, sample)
  'on_val_step_end', -- (trainer, outputs)
  'after_aggregate_val_step_outputs', -- (trainer, aggregated, val_loss)
  'on_val_end', -- (trainer, val_loss)
  'before_log_val_metrics', -- (trainer, metrics)
  'on_save_checkpoint', -- (trainer, checkpoint) may add plain data to checkpoint.user
  'on_epoch_end', -- (trainer, epoch)
  'on_train_end', -- (trainer)
  'on_finalize', -- (trainer) also after an error
}

local known = {}
for _, name in ipairs(M.names) do known[name] = true end

local what = { key = 'hook.type', expects = 'a function (args) that returns a table of hooks' }

local function flatten(hook, list)
  if type(hook) == 'string' then hook = { type = hook } end
  if type(hook) ~= 'table' then
    fail('usage', 'hook', ('a %s; expected a table of functions by hook name'):format(type(hook)))
  end
  if hook.type ~= nil then
    local made = resolve(what, hook.type)
    if type(made) == 'function' then made = made(hook.args or {}) end
    return flatten(made, list)
  end
  if #hook > 0 then
    for _, item in ipairs(hook) do flatten(item, list) end
    return list
  end
  list[#list + 1] = hook
  return list
end

---@class nnscaler.Hooks
local Hooks = {}
Hooks.__index = Hooks

--- Makes the hooks of a job; unknown names and values that are not functions are refused.
---@param hook table|string|nil
---@return nnscaler.Hooks
function M.new(hook)
  local self = setmetatable({ by_name = {} }, Hooks)
  for _, item in ipairs(hook and flatten(hook, {}) or {}) do
    for name, f in sorted.sorted_pairs(item) do
      if not known[name] then
        fail('usage', 'hook', ("unknown hook '%s'; expected one of %s"):format(tostring(name),
          table.concat(M.names, ', ')), nearest(name, M.names))
      end
      if type(f) == 'string' then f = resolve({ key = 'hook.' .. name,
        expects = 'a function' }, f) end
      if type(f) ~= 'function' then
        fail('usage', 'hook.' .. name, ('a %s; expected a function'):format(type(f)))
      end
      local list = self.by_name[name] or {}
      self.by_name[name] = list
      list[#list + 1] = f
    end
  end
  return self
end

--- Whether there is a function of any of the hooks.
---@param names string[]
---@return boolean
function Hooks:any(names)
  for _, name in ipairs(names) do
    if self.by_name[name] then return true end
  end
  return false
end

--- Calls the functions of one hook.
---@param name string
---@param ... any
function Hooks:fire(name, ...)
  local list = self.by_name[name]
  if not list then return end
  for _, f in ipairs(list) do f(...) end
end

return M
