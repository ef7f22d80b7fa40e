--- Arithmetic of batches and of the position in the data.
---
--- A step takes `accumulation · units` micro-batches. In a data set with epochs the last step of an
--- epoch takes what is left; its mean is right all the same, since gradients are divided by the
--- weights that were seen.
local fail = require 'nnscaler.fail'

local M = {}

--- Returns the number of micro-batches that each scale unit runs in one step.
---@param job { micro_batch_size: integer, global_batch_size?: integer,
---  grad_accumulation_steps?: integer, pas_config?: { pipeline_nmicros?: integer } }
---@param units integer scale units
---@return integer
function M.accumulation(job, units)
  local micro, global, steps = job.micro_batch_size, job.global_batch_size,
    job.grad_accumulation_steps
  if not global then return steps or (job.pas_config or {}).pipeline_nmicros or 1 end
  if steps then
    if global ~= micro * units * steps then
      fail('usage', 'trainer.batch', ('global_batch_size %d is not micro_batch_size %d × scale '
        .. 'units %d × grad_accumulation_steps %d = %d'):format(global, micro, units, steps,
        micro * units * steps), 'leave out one of them')
    end
    return steps
  end
  if global % (micro * units) ~= 0 then
    fail('usage', 'trainer.batch', ('global_batch_size %d is not a multiple of micro_batch_size %d '
      .. '× scale units %d = %d'):format(global, micro, units, micro * units))
  end
  return global / (micro * units)
end

---@class nnscaler.trainer.Span where a run ends and how it is cut into epochs
---@field per_step integer micro-batches of one step
---@field per_epoch integer|nil micro-batches of one epoch; nil: endless
---@field steps_per_epoch integer|nil
---@field total_steps integer
---@field epochs_end boolean whether max_epochs is what ends the run

--- Returns the span of a run: the smaller of max_epochs and max_train_steps.
---@param job { max_epochs?: integer, max_train_steps?: integer }
---@param per_epoch integer|nil micro-batches of an epoch
---@param per_step integer micro-batches of a step
---@return nnscaler.trainer.Span
function M.span(job, per_epoch, per_step)
  local steps, epochs = job.max_train_steps, job.max_epochs
  if not steps and not epochs then
    fail('usage', 'trainer.span', 'neither max_train_steps nor max_epochs is set; expected one')
  end
  local span = { per_step = per_step, per_epoch = per_epoch, epochs_end = false }
  if per_epoch then
    if per_epoch < 1 then
      fail('data', 'trainer.span', 'the training data have no micro-batch in an epoch; expected at '
        .. 'least one', 'make micro_batch_size smaller, or drop_last = false')
    end
    span.steps_per_epoch = math.ceil(per_epoch / per_step)
  elseif not steps then
    fail('usage', 'trainer.span', ('max_epochs is %d, but the training data have no epochs; '
      .. 'expected max_train_steps'):format(epochs))
  end
  local by_epochs = epochs and span.steps_per_epoch and epochs * span.steps_per_epoch
  span.total_steps = steps or by_epochs
  if by_epochs and by_epochs <= span.total_steps then
    span.total_steps, span.epochs_end = by_epochs, by_epochs ~= steps
  end
  return span
end

--- Returns epoch and step in the epoch (both from 0) of the step that follows `step` done ones.
---@param span nnscaler.trainer.Span
---@param step integer
---@return integer epoch, integer index
function M.position(span, step)
  if not span.steps_per_epoch then return 0, step end
  return math.floor(step / span.steps_per_epoch), step % span.steps_per_epoch
end

--- Returns the global numbers of the micro-batches of a step: the first and how many.
---@param span nnscaler.trainer.Span
---@param epoch integer
---@param index integer
---@return integer first, integer count
function M.micro_batches(span, epoch, index)
  local offset = index * span.per_step
  if not span.per_epoch then return offset, span.per_step end
  return epoch * span.per_epoch + offset, math.min(span.per_step, span.per_epoch - offset)
end

return M
