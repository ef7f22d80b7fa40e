--- One training step: zero, forward and backward of the micro-batches, scale, clip, update.
local base = require 'nnscaler._C.base'
local decisions = require 'nnscaler.trainer.decisions'
local fail = require 'nnscaler.fail'
local format = require 'nnscaler.format'
local gradient_check = require 'nnscaler.trainer.gradient_check'
local launch = require 'nnscaler._C.launch'
local mfu = require 'nnscaler.trainer.mfu'
local process = require 'nnscaler._C.process'
local profile = require 'nnscaler.runtime.profile'
local ranks = require 'nnscaler.ranks'
local reduction = require 'nnscaler.trainer.reduction'
local saver = require 'nnscaler.trainer.saver'
local sorted = require 'nnscaler.sorted'

local M = {}

local function is_finite(x) return x == x and x ~= math.huge and x ~= -math.huge end

-- The ranks on which a micro-batch of the step had a loss that is not finite.
local function ranks_with_nan(result)
  local own, names = '', {}
  for _, loss in sorted.sorted_pairs(result.losses) do
    if not is_finite(loss) then own = 'x' end
  end
  for r, told in ipairs(ranks.exchange(own)) do
    if told ~= '' then names[#names + 1] = tostring(r - 1) end
  end
  return names
end

local function stop_on_nan(t, what, value, result)
  saver.wait(t)
  local good = t.last_checkpoint
  local where = t.sharing and ranks_with_nan(result) or {}
  local message = ('%s is %s at step %d (epoch %d)%s; expected a finite number; last good '
    .. 'checkpoint: %s'):format(what, format.short(value), t.step + 1, t.epoch, #where > 0
    and ', from rank ' .. table.concat(where, ', ') or '', good or 'none')
  fail('state', 'trainer.nan', message, 'a smaller learning rate may help; on_nan=skip goes on '
    .. 'without such steps' .. (good and '; checkpoint.resume_from=' .. good .. ' resumes' or ''))
end

-- Whether to update the weights with what was measured. Gradients that overflow are the business of
-- the loss scale as long as a smaller one may help.
local function is_usable(t, loss, gnorm, result)
  if t.loss_scale and is_finite(loss) then
    local factor, helps = t.loss_scale.factor, t.loss_scale:step(is_finite(gnorm))
    if helps and not is_finite(gnorm) then
      t:say('info', 'step %d: gradients overflow at a loss scale of %g: no update, %g from here on',
        t.step + 1, factor, t.loss_scale.factor)
      return false
    end
  end
  local what = not is_finite(loss) and 'train_loss' or (not is_finite(gnorm) and 'gnorm' or nil)
  if not what then return true end
  local value = what == 'gnorm' and gnorm or loss
  if t.args.on_nan ~= 'skip' then stop_on_nan(t, what, value, result) end
  t:say('warning', '%s is %s at step %d: no update', what, format.short(value), t.step + 1)
  return false
end

local function fetch(t)
  local first, count = t.span:micro_batches(t)
  local samples = {}
  local units, unit = t.units, t.unit
  for k = unit, count - 1, units do samples[#samples + 1] = t.train_loader:get(first + k) end
  return samples
end

fetch = profile.timed('data', 'load micro-batches', fetch)

-- Sums, scales, clips and applies the gradients; returns norm and learning rate.
local function update(t, result)
  local hooks, step, scale = t.hooks, t.update, t.loss_scale and t.loss_scale.factor or 1
  hooks:fire('before_sync_grad', t)
  step:sum()
  hooks:fire('after_sync_grad', t)
  if t.args.debug.check_gradient_sync_cross_devices then gradient_check(t) end
  local lr = t.schedule(t.step, t.epoch)
  if result.weight == 0 then
    t:say('warning', 'step %d has no label that counts: no update', t.step + 1)
    return 0, lr
  end
  step:scale(1 / (result.divisor * scale))
  local gnorm = step:norm()
  hooks:fire('before_gnorm_clip', t)
  local usable = is_usable(t, result.loss, gnorm, result)
  if usable then step:clip(gnorm, t.args.optimizer.clip_gnorm or 0) end
  hooks:fire('after_gnorm_clip', t, gnorm)
  if decisions.skips(t) then
    t:say('info', 'step %d: no update, as a hook has asked', t.step + 1)
    usable = false
  end
  if usable then
    hooks:fire('before_optimizer_step', t)
    step:update(lr)
    hooks:fire('after_optimizer_step', t)
  end
  return gnorm, lr
end

--- Runs the step that follows t.step done ones and counts it.
---@param t nnscaler.Trainer
---@return table<string, number> metrics, table aggregated what the engine returned
function M.run(t)
  local hooks = t.hooks
  if t.profile then t.profile:before_step(t) end
  local started = base.clock()
  t.asked.skip = false
  launch.at_step(t.step + 1)
  hooks:fire('on_step_start', t, t.step + 1)
  hooks:fire('before_zero_grad', t)
  t.engine:zero_grad()
  hooks:fire('after_zero_grad', t)
  local samples = fetch(t)
  hooks:fire('on_train_step_start', t, samples)
  local computing = base.clock()
  local scale = t.loss_scale and t.loss_scale.factor
  local result = t.engine:train_step(samples, { step = t.step, seed = t.seed, scale = scale,
    unweighted = reduction.unweighted(t) })
  hooks:fire('on_train_step_end', t, result.outputs)
  reduction.apply(t, result)
  hooks:fire('after_aggregate_train_step_outputs', t, result, result.loss)
  launch.at_phase 'update'
  saver.settle(t)
  local gnorm, lr = update(t, result)
  local ended = base.clock()
  local metrics = {
    epoch = t.epoch, train_loss = result.loss, gnorm = gnorm, lr = lr, tokens = result.weight,
    tokens_per_s = result.weight / (ended - started), step_s = ended - started,
    train_wall = ended - computing, rss_bytes = process.rss_bytes(), loss_scale = scale,
  }
  if t.args.peak_tflops then metrics.mfu = mfu.of(t, metrics.step_s) end
  t.span:advance(t)
  if t.profile then t.profile:after_step(t) end
  return metrics, result
end

return M
