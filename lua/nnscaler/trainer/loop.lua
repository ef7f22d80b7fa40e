--- The loop over epochs and steps, and what is decided after each step: evaluate, save, stop.
local decisions = require 'nnscaler.trainer.decisions'
local evaluate = require 'nnscaler.trainer.evaluate'
local saver = require 'nnscaler.trainer.saver'
local step = require 'nnscaler.trainer.step'

local M = {}

local signal_names = { [2] = 'SIGINT', [15] = 'SIGTERM' }

-- Why the run ends here, in words, or nil.
local function reason_to_stop(t)
  local args, span = t.args, t.span
  if t.signal then
    return ('Received %s: stopped after %d steps.'):format(
      signal_names[t.signal] or ('signal ' .. t.signal), t.step)
  end
  if t.step >= span.total_steps then
    if span.epochs_end then
      return ('Reached max epochs(%d): Training is done.'):format(args.max_epochs)
    end
    return ('Reached max train steps(%d): Training is done.'):format(span.total_steps)
  end
  if t.stop_reason then return t.stop_reason end
  if args.stop_after_steps and t.step >= args.stop_after_steps then
    return ('Stopped after %d of %d steps (stop_after_steps).'):format(t.step, span.total_steps)
  end
  return nil
end

local function is_multiple(value, n) return n ~= nil and value % n == 0 end

-- Evaluates and saves what is due after a step or at the end of the run, or was asked for;
-- evaluation comes first. Returns whether it did anything.
local function evaluate_and_save(t, epoch_ended, last)
  local args, checkpoint = t.args, t.args.checkpoint
  local epochs = epoch_ended and t.epoch or nil -- epochs done
  local by_steps, by_epochs = checkpoint.every_n_train_steps, checkpoint.every_n_epochs
  if not by_steps and not by_epochs then by_epochs = 1 end
  local asked = t.asked
  local save = not checkpoint.no_save and t.saved_step ~= t.step and t.step > 0
    and (last or asked.save or is_multiple(t.step, by_steps)
      or (epochs ~= nil and is_multiple(epochs, by_epochs)))
  local due = is_multiple(t.step, args.val_every_n_train_steps)
    or (epochs ~= nil and is_multiple(epochs, args.val_every_n_epochs)) or save or last
    or asked.evaluate
  asked.save, asked.evaluate = false, false
  -- Who sends a signal waits for the end: save at once.
  if due and not t.signal and t.validated_step ~= t.step and t.step > 0 then evaluate.run(t) end
  if save then
    t:end_step() -- a run that is killed from here on resumes behind this step: its row is there
    saver.save(t, last)
  end
  return due or save
end

local function after_step(t, metrics, result)
  local hooks = t.hooks
  hooks:fire('before_log_train_metrics', t, metrics, result)
  t:log_metrics(metrics, 'train') -- refuses what a hook made of them
  t.train_loss, t.metrics = metrics.train_loss, metrics
  t.history:add_train(t.step, metrics.train_loss)
  if t.prediction then t.prediction:after_step(t, metrics) end
  hooks:fire('on_step_end', t, t.step, metrics, result)
  saver.prepare(t)
  decisions.agree(t)
  local reason = reason_to_stop(t)
  local epoch_ended = t.span:epoch_ended(t)
  t.progress:show(t.epoch, t.epoch_step, t.step, metrics, reason ~= nil or epoch_ended)
  if epoch_ended then
    hooks:fire('on_epoch_end', t, t.epoch)
    t.span:next_epoch(t)
  end
  local worked = evaluate_and_save(t, epoch_ended, reason ~= nil)
  if not reason and (worked or epoch_ended) then -- a hook or a signal meanwhile
    decisions.agree(t)
    reason = reason_to_stop(t)
    if reason or t.asked.save or t.asked.evaluate then
      evaluate_and_save(t, epoch_ended, reason ~= nil)
    end
  end
  t:end_step()
  return reason, epoch_ended
end

-- How much of the communication of gradients was hidden behind computation.
local function tell_overlap(t)
  local told = t.sharing and t.engine.states and t.engine.states:overlapped()
  if not told then return end
  t:say('info', 'Sums of gradients over ranks: under way %.1f ms a step, %.0f %% of it beside '
    .. 'backward.', 1000 * told.seconds, 100 * told.hidden)
end

--- Trains until something ends the run.
---@param t nnscaler.Trainer
---@return string reason
function M.run(t)
  t.hooks:fire('on_train_start', t)
  t:say('info', 'Training...')
  decisions.agree(t)
  local reason, new_epoch = reason_to_stop(t), true
  while not reason do
    if new_epoch then
      t.progress:begin_epoch(t.span:epoch_steps(t))
      t.hooks:fire('on_epoch_start', t, t.epoch)
    end
    reason, new_epoch = after_step(t, step.run(t))
  end
  if t.profile then t.profile:close(t) end
  saver.wait(t)
  if t.test_loader and not t.signal and t.step > 0 then evaluate.test(t) end
  t.hooks:fire('on_train_end', t)
  tell_overlap(t)
  t:say('info', '%s', reason)
  return reason
end

return M
