--- Evaluation: one fixed pass over the validation data, weighted as training is.
local base = require 'nnscaler._C.base'
local batches = require 'nnscaler.trainer.batches'
local fail = require 'nnscaler.fail'
local format = require 'nnscaler.format'
local launch = require 'nnscaler._C.launch'
local process = require 'nnscaler._C.process'

local M = {}

-- Mean loss over a loader of one pass; nil when a signal came meanwhile: who sent it waits for the
-- checkpoint.
local function pass(t, loader, limit)
  local hooks, count = t.hooks, loader.per_epoch
  if limit then count = math.min(count, limit * t.span.per_step) end
  local total, weight = 0, 0
  -- Units that wait for each other run equally many micro-batches: the last one may be idle.
  local last = t.sharing and t.sharing.lockstep and math.ceil(count / t.units) * t.units or count
  for i = t.unit, last - 1, t.units do
    if not t.sharing and process.pending_signal() then
      t:say('warning', 'The evaluation after %d steps was interrupted.', t.step)
      return nil
    end
    local idle = i >= count
    local sample = loader:get(idle and 0 or i)
    if not idle then hooks:fire('on_val_step_start', t, sample) end
    local loss, n, outputs = t.engine:eval_step(sample, { step = t.step, micro = i, seed = t.seed })
    if not idle then hooks:fire('on_val_step_end', t, outputs) end
    if n > 0 and not idle then total, weight = total + n * loss, weight + n end
  end
  if t.sharing then total, weight = unpack(t.sharing:over_all { total, weight }) end
  if weight == 0 then
    fail('data', 'trainer.evaluate', ('the %d micro-batches of evaluation data hold no label that '
      .. 'counts; expected at least one'):format(count))
  end
  return total / weight, weight
end

--- Evaluates the model as it is; returns nothing when there are no validation data, or when a
--- signal came meanwhile.
---@param t nnscaler.Trainer
---@return number|nil val_loss
function M.run(t)
  if not t.val_loader then return nil end
  local started, hooks = base.clock(), t.hooks
  launch.at_phase 'evaluation'
  hooks:fire('on_val_start', t)
  local val_loss, weight = pass(t, t.val_loader, t.args.max_val_steps)
  if not val_loss then return nil end
  hooks:fire('after_aggregate_val_step_outputs', t, { loss = val_loss, weight = weight }, val_loss)
  hooks:fire('on_val_end', t, val_loss)
  local epoch = batches.last_epoch(t)
  local metrics = { epoch = epoch, val_loss = val_loss, val_wall = base.clock() - started }
  hooks:fire('before_log_val_metrics', t, metrics)
  t:say('info', 'Epoch %d: validation after %d steps: val_loss=%s, val_wall=%s', epoch, t.step,
    format.short(val_loss), format.short(metrics.val_wall))
  t:log_metrics(metrics, 'val')
  t.history:add_val(t.step, val_loss)
  t.val_loss, t.validated_step = val_loss, t.step
  return val_loss
end

--- Evaluates the trained model on the test data; hooks of evaluation steps are called.
---@param t nnscaler.Trainer
function M.test(t)
  local started = base.clock()
  launch.at_phase 'evaluation'
  local loss = pass(t, t.test_loader)
  if not loss then return end
  t.test_loss = loss
  local metrics = { epoch = batches.last_epoch(t), test_loss = loss,
    test_wall = base.clock() - started }
  t:say('info', 'Test after %d steps: test_loss=%s, test_wall=%s', t.step, format.short(loss),
    format.short(metrics.test_wall))
  t:log_metrics(metrics, 'test')
  t:end_step()
end

return M
