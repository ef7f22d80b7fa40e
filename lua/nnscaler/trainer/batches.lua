--- Arithmetic of batches and of the position in the data.
---
--- A step takes `accumulation · units` micro-batches, or what `global_batch_schedule` says of it.
--- In a data set with epochs the last step of an epoch takes what is left; its mean is right all
--- the same, since gradients are divided by the weights that were seen.
---
--- The position is { epoch, done }: micro-batches done in the epoch. A checkpoint keeps it in
--- samples, so that a run may go on with micro-batches of another size, other steps and another
--- number of scale units: each sample still comes once, in the same order.
local fail = require 'nnscaler.fail'
local sorted = require 'nnscaler.sorted'

local M = {}

-- Micro-batches of a scale unit for so many samples of a step.
local function share(key, global, micro, units)
  if global % (micro * units) ~= 0 then
    fail('usage', 'trainer.batch', ('%s %d is not a multiple of micro_batch_size %d '
      .. '× scale units %d = %d'):format(key, global, micro, units, micro * units))
  end
  return global / (micro * units)
end

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
  return share('global_batch_size', global, micro, units)
end

--- Samples of a step where the number of scale units is open: those that the job says, else what
--- all ranks take as units of their own.
---@param job { micro_batch_size: integer, global_batch_size?: integer,
---  grad_accumulation_steps?: integer }
---@param ranks integer
---@return integer
function M.samples(job, ranks)
  return job.global_batch_size
    or ranks * job.micro_batch_size * (job.grad_accumulation_steps or 1)
end

local known = { after_steps = true, global_batch_size = true }

--- Reads `global_batch_schedule`: how many micro-batches steps have from which step on.
---@param job { micro_batch_size: integer, global_batch_schedule?: table[] }
---@param units integer
---@return { after: integer, per_step: integer }[]
function M.schedule(job, units)
  local list, before = {}, -1
  for i, entry in ipairs(job.global_batch_schedule or {}) do
    local key = ('global_batch_schedule[%d]'):format(i)
    for name in sorted.sorted_pairs(type(entry) == 'table' and entry or {}) do
      if not known[name] then
        fail('usage', 'trainer.batch', ("%s has the key '%s'; expected after_steps and "
          .. 'global_batch_size'):format(key, tostring(name)))
      end
    end
    local after, global = entry.after_steps, entry.global_batch_size
    if type(after) ~= 'number' or after % 1 ~= 0 or after <= before then
      fail('usage', 'trainer.batch', ('%s.after_steps is %s; expected an integer above %d'):format(
        key, tostring(after), before))
    end
    if type(global) ~= 'number' or global % 1 ~= 0 or global < 1 then
      fail('usage', 'trainer.batch', ('%s.global_batch_size is %s; expected an integer of at least '
        .. '1'):format(key, tostring(global)))
    end
    before = after
    list[i] = { after = after, per_step = units
      * share(key .. '.global_batch_size', global, job.micro_batch_size, units) }
  end
  return list
end

---@class nnscaler.trainer.Span where a run ends and how it is cut into steps and epochs
---@field per_step integer micro-batches of a step, where the schedule says nothing else
---@field per_epoch integer|nil micro-batches of one epoch; nil: endless
---@field steps_per_epoch integer|nil of the first epoch
---@field total_steps integer
---@field epochs_end boolean whether max_epochs is what ends the run
local Span = {}
Span.__index = Span

---@class nnscaler.trainer.Position
---@field step integer steps done
---@field epoch integer of the next step, from 0
---@field epoch_step integer steps done in it
---@field epoch_done integer micro-batches done in it

--- Micro-batches of the step that follows so many done ones.
---@param step integer
---@return integer
function Span:size(step)
  local size = self.per_step
  for _, entry in ipairs(self.changes) do
    if step >= entry.after then size = entry.per_step end
  end
  return size
end

--- The global numbers of the micro-batches of the next step: the first and how many.
---@param at nnscaler.trainer.Position
---@return integer first, integer count
function Span:micro_batches(at)
  local size = self:size(at.step)
  if not self.per_epoch then return at.epoch_done, size end
  return at.epoch * self.per_epoch + at.epoch_done, math.min(size, self.per_epoch - at.epoch_done)
end

--- Whether the epoch of a position is over.
---@param at nnscaler.trainer.Position
---@return boolean
function Span:epoch_ended(at) return at.epoch_done == self.per_epoch end

--- Moves a position on by a step; the caller moves it into the next epoch.
---@param at nnscaler.trainer.Position
function Span:advance(at)
  local _, count = self:micro_batches(at)
  at.step, at.epoch_step, at.epoch_done = at.step + 1, at.epoch_step + 1, at.epoch_done + count
end

---@param at nnscaler.trainer.Position
function Span:next_epoch(at) at.epoch, at.epoch_step, at.epoch_done = at.epoch + 1, 0, 0 end

-- Steps until an epoch is over, from a position on.
function Span:steps_to(at, epochs)
  local to = { step = at.step, epoch = at.epoch, epoch_step = 0, epoch_done = at.epoch_done }
  while to.epoch < epochs do
    if #self.changes == 0 or to.step >= self.changes[#self.changes].after then
      -- The rest has steps of one size.
      local size = self:size(to.step)
      local rest = math.ceil((self.per_epoch - to.epoch_done) / size)
      return to.step + rest + (epochs - to.epoch - 1) * math.ceil(self.per_epoch / size)
    end
    self:advance(to)
    if self:epoch_ended(to) then self:next_epoch(to) end
  end
  return to.step
end

--- Steps of the epoch that a position stands in; nil without epochs.
---@param at nnscaler.trainer.Position
---@return integer|nil
function Span:epoch_steps(at)
  if not self.per_epoch then return nil end
  return self:steps_to(at, at.epoch + 1) - at.step + at.epoch_step
end

--- The position of a run that starts.
---@return nnscaler.trainer.Position
function M.start() return { step = 0, epoch = 0, epoch_step = 0, epoch_done = 0 } end

--- Returns the span of a run: the smaller of max_epochs and max_train_steps.
---@param job { max_epochs?: integer, max_train_steps?: integer }
---@param per_epoch integer|nil micro-batches of an epoch
---@param per_step integer micro-batches of a step
---@param changes? { after: integer, per_step: integer }[] what `schedule` returned
---@return nnscaler.trainer.Span
function M.span(job, per_epoch, per_step, changes)
  local steps, epochs = job.max_train_steps, job.max_epochs
  if not steps and not epochs then
    fail('usage', 'trainer.span', 'neither max_train_steps nor max_epochs is set; expected one')
  end
  local span = setmetatable({ per_step = per_step, per_epoch = per_epoch, epochs_end = false,
    changes = changes or {}, max_steps = steps, max_epochs = epochs }, Span)
  if per_epoch then
    if per_epoch < 1 then
      fail('data', 'trainer.span', 'the training data have no micro-batch in an epoch; expected at '
        .. 'least one', 'make micro_batch_size smaller, or drop_last = false')
    end
    span.steps_per_epoch = span:steps_to(M.start(), 1)
  elseif not steps then
    fail('usage', 'trainer.span', ('max_epochs is %d, but the training data have no epochs; '
      .. 'expected max_train_steps'):format(epochs))
  end
  span:find_end(M.start())
  return span
end

--- Finds out anew after how many steps the run ends, from a position on.
---@param at nnscaler.trainer.Position
function Span:find_end(at)
  local steps = self.max_steps
  local by_epochs = self.max_epochs and self.per_epoch and self:steps_to(at, self.max_epochs)
  self.total_steps, self.epochs_end = steps or by_epochs, false
  if by_epochs and by_epochs <= self.total_steps then
    self.total_steps, self.epochs_end = by_epochs, by_epochs ~= steps
  end
end

--- The epoch of the last step that was done.
---@param at nnscaler.trainer.Position
---@return integer
function M.last_epoch(at) return math.max(at.epoch_step == 0 and at.epoch - 1 or at.epoch, 0) end

--- Epochs until the end of the run; nil without epochs.
---@return integer|nil
function Span:epochs()
  if not self.steps_per_epoch then return nil end
  return self.epochs_end and self.max_epochs or math.ceil(self.total_steps / self.steps_per_epoch)
end

--- The position of a checkpoint in samples.
---@param at nnscaler.trainer.Position
---@param micro_batch_size integer
---@return { epoch: integer, epoch_step: integer, samples: integer }
function M.to_samples(at, micro_batch_size)
  return { epoch = at.epoch, epoch_step = at.epoch_step,
    samples = at.epoch_done * micro_batch_size }
end

--- The position of a run that goes on from a checkpoint.
---@param span nnscaler.trainer.Span
---@param step integer steps done
---@param saved { epoch: integer, epoch_step: integer, samples: integer }
---@param job { micro_batch_size: integer }
---@param path string of the checkpoint, for messages
---@return nnscaler.trainer.Position
function M.of_samples(span, step, saved, job, path)
  local size = job.micro_batch_size
  local at = { step = step, epoch = saved.epoch, epoch_step = saved.epoch_step,
    epoch_done = math.floor(saved.samples / size) }
  -- An epoch is over where less is left than a micro-batch that is kept.
  if span.per_epoch and at.epoch_done >= span.per_epoch then
    span:next_epoch(at)
  elseif saved.samples % size ~= 0 then
    fail('state', 'trainer.resume', ("'%s' was written %d samples into an epoch, in the middle of "
      .. 'a micro-batch of micro_batch_size = %d'):format(path, saved.samples, size),
      ('take a micro_batch_size that divides %d, or a checkpoint from the end of an epoch'):format(
        saved.samples))
  end
  return at
end

return M
