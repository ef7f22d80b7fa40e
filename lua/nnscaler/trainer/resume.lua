--- Goes on from a checkpoint: everything is checked before anything is changed.
local base = require 'nnscaler._C.base'
local batches = require 'nnscaler.trainer.batches'
local checkpoint = require 'nnscaler.checkpoint'
local fail = require 'nnscaler.fail'
local history = require 'nnscaler.trainer.history'
local loss_scale = require 'nnscaler.trainer.loss_scale'
local ranks = require 'nnscaler.ranks'
local shared_checkpoint = require 'nnscaler.trainer.shared_checkpoint'
local slices = require 'nnscaler.trainer.slices'

local M = {}

-- Path of the checkpoint to go on from; nil, said in the log, when 'last' or 'best' is not there.
local function find(t)
  local name, folder = t.args.checkpoint.resume_from, t.args.checkpoint.save_dir
  if name == 'last' or name == 'best' then
    local there = base.file_exists(folder .. '/' .. name .. '/manifest.json') == 'file'
      or (name == 'last' and #checkpoint.list(folder) > 0)
    if not there then
      t.log.warning("there is no checkpoint '%s' in '%s': training starts from scratch", name,
        folder)
      return nil
    end
  end
  return checkpoint.resolve(name, folder)
end

-- Samples of an epoch, as micro-batches cut them.
local function samples_of(t)
  return t.span.per_epoch and t.span.per_epoch * t.args.micro_batch_size
end

--- Where in the data a run stands, and how long it is, as checkpoints keep it.
---@param t nnscaler.Trainer
---@return table
function M.position(t)
  local at, job = batches.to_samples(t, t.args.micro_batch_size), t.args
  at.micro_batch_size, at.per_epoch = job.micro_batch_size, samples_of(t)
  at.horizon, at.max_epochs, at.max_train_steps = t.horizon, job.max_epochs, job.max_train_steps
  return at
end

-- Checkpoints of before positions were kept in samples: the step says all, if nothing has changed.
local function old_position(t, state, path)
  local names = { { 'micro_batches_per_step', t.span.per_step },
    { 'micro_batches_per_epoch', t.span.per_epoch } }
  for _, entry in ipairs(names) do
    local was, is = state[entry[1]], entry[2]
    if was ~= is then
      fail('state', 'trainer.resume', ("'%s' was written with %s = %s, this job has %s: the "
        .. 'position in the data cannot be carried over'):format(path, entry[1], tostring(was),
        tostring(is)), 'set batch sizes and data as they were')
    end
  end
  local per = t.span.steps_per_epoch
  local epoch, index = per and math.floor(state.step / per) or 0, per and state.step % per
    or state.step
  return { epoch = epoch, epoch_step = index, micro_batch_size = t.args.micro_batch_size,
    samples = index * t.span.per_step * t.args.micro_batch_size, per_epoch = samples_of(t) }
end

-- Where this run goes on. Data of another size were not those of the checkpoint.
local function find_position(t, state, path)
  local saved = state.position or old_position(t, state, path)
  local was, is, size = saved.per_epoch, samples_of(t), t.args.micro_batch_size
  if (was == nil) ~= (is == nil)
    or was and math.abs(was - is) >= math.max(size, saved.micro_batch_size) then
    fail('state', 'trainer.resume', ("'%s' was written with %s samples in an epoch, this job has "
      .. '%s: the position in the data cannot be carried over'):format(path,
      tostring(was or 'endless'), tostring(is or 'endless')), 'set the data as they were')
  end
  if state.seed ~= t.seed then
    t.log.warning("'%s' was written with seed=%d, this job has seed=%d: data order and random "
      .. 'numbers will differ from the run that wrote it', path, state.seed, t.seed)
  end
  return batches.of_samples(t.span, state.step, saved, t.args, path), saved
end

-- Goes on there. The schedule keeps its horizon where the job's end is as it was.
local function set_position(t, at, saved)
  t.step, t.epoch, t.epoch_step, t.epoch_done = at.step, at.epoch, at.epoch_step, at.epoch_done
  t.span:find_end(at)
  local same = saved.max_epochs == t.args.max_epochs
    and saved.max_train_steps == t.args.max_train_steps
  t.horizon = same and saved.horizon or t.span.total_steps
  if t.horizon ~= t.span.total_steps then
    t.log.info('The run ends after %d steps; the learning rate keeps its horizon of %d.',
      t.span.total_steps, t.horizon)
  end
end

--- Goes on from the checkpoint that the job names, if it is there.
---@param t nnscaler.Trainer
---@return boolean whether it was
function M.run(t)
  if t.args.checkpoint.resume_from == nil then return false end
  local saved
  if t.sharing then
    saved = shared_checkpoint.open(t, find)
  else
    local path = find(t)
    saved = path and checkpoint.open(path)
  end
  if not saved then return false end
  local path = saved.path
  local wanted, state = slices.wanted(t.model), saved.state
  saved.user = state.user or {}
  t.hooks:fire('on_load_checkpoint', t, saved)
  saved:check(wanted, t.sharing and { rank = t.rank, ranks = t.world_size,
    exchange = ranks.exchange })
  local at, position = find_position(t, state, path)
  t.optimizer:load_state { counts = state.updates,
    tensors = slices.optimizer(saved, t.store, wanted) }
  slices.weights(saved, t.store, wanted)
  set_position(t, at, position)
  t.best_loss = state.best_loss
  t.train_loss, t.val_loss = state.train_loss, state.val_loss
  if t.loss_scale then t.loss_scale = loss_scale.new(state.loss_scale) end
  t.history = history.new(state.history)
  t.saved_step, t.validated_step, t.last_checkpoint = t.step, t.step, path
  t.hooks:fire('after_load_checkpoint', t, saved)
  t.log.info('Resumed from %s after %d steps.', path, t.step)
  return true
end

return M
