--- Evaluation: one fixed pass over the validation data, weighted as training is.
local base = require 'nnscaler._C.base'
local batches = require 'nnscaler.trainer.batches'
local fail = require 'nnscaler.fail'
local format = require 'nnscaler.format'
local launch = require 'nnscaler._C.launch'
local process = require 'nnscaler._C.process'

local M = {}

--- Evaluates the model as it is; returns nothing when there are no validation data, or when a
--- signal came meanwhile: who sent it waits for the checkpoint.
---@param t nnscaler.Trainer
---@return number|nil val_loss
function M.run(t)
  if not t.val_loader then return nil end
  local started, hooks = base.clock(), t.hooks
  launch.at_phase 'evaluation'
  hooks:fire('on_val_start', t)
  local count = t.val_loader.per_epoch
  if t.args.max_val_steps then count = math.min(count, t.args.max_val_steps * t.span.per_step) end
  local total, weight = 0, 0
  -- Units that wait for each other run equally many micro-batches: the last one may be idle.
  local last = t.sharing and t.sharing.lockstep and math.ceil(count / t.units) * t.units or count
  for i = t.unit, last - 1, t.units do
    if not t.sharing and process.pending_signal() then
      t:say('warning', 'The evaluation after %d steps was interrupted.', t.step)
      return nil
    end
    local idle = i >= count
    local sample = t.val_loader:get(idle and 0 or i)
    if not idle then hooks:fire('on_val_step_start', t, sample) end
    local loss, n, outputs = t.engine:eval_step(sample, { step = t.step, micro = i, seed = t.seed })
    if not idle then hooks:fire('on_val_step_end', t, outputs) end
    if n > 0 and not idle then total, weight = total + n * loss, weight + n end
  end
  if t.sharing then total, weight = unpack(t.sharing:over_all { total, weight }) end
  if weight == 0 then
    fail('data', 'trainer.evaluate', ('the %d micro-batches of validation data hold no label that '
      .. 'counts; expected at least one'):format(count))
  end
  local val_loss = total / weight
  hooks:fire('after_aggregate_val_step_outputs', t, { loss = val_loss, weight = weight }, val_loss)
  hooks:fire('on_val_end', t, val_loss)
  local epoch = batches.position(t.span, math.max(t.step - 1, 0)) -- of the last step
  local metrics = { epoch = epoch, val_loss = val_loss, val_wall = base.clock() - started }
  hooks:fire('before_log_val_metrics', t, metrics)
  t:say('info', 'Epoch %d: validation after %d steps: val_loss=%s, val_wall=%s', epoch, t.step,
    format.short(val_loss), format.short(metrics.val_wall))
  t:log_metrics(metrics, 'val')
  t.history:add_val(t.step, val_loss)
  t.val_loss, t.validated_step = val_loss, t.step
  return val_loss
end

return M
