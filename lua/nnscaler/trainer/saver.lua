--- Writes checkpoints: weights, optimizer, and the state from which a run goes on bit for bit.
--- Position in the data, schedule and random numbers are functions of the step, so the step is
--- enough for them.
local base = require 'nnscaler._C.base'
local batches = require 'nnscaler.trainer.batches'
local format = require 'nnscaler.format'
local launch = require 'nnscaler._C.launch'
local paths = require 'nnscaler._C.checkpoint'
local process = require 'nnscaler._C.process'
local resume = require 'nnscaler.trainer.resume'
local saving = require 'nnscaler.trainer.saving'

local M = {}

-- Loss that says how good this checkpoint is: of the validation data where there are any.
local function quality(t)
  if not t.val_loader then return t.train_loss end
  return t.validated_step == t.step and t.val_loss or nil
end

-- From which the model can be made again.
local function describe_job(job)
  local file = job:file()
  return { file = paths.real_path(file) or file, overrides = job:overrides(), text = job:text() }
end

local function vocabulary(t)
  local dataset = t.dataset
  return type(dataset) == 'table' and dataset.vocabulary and dataset:vocabulary() or nil
end

--- Tells the process how long it has to end after SIGTERM, and what to say when it takes longer.
---@param t nnscaler.Trainer
function M.limit_end(t)
  local seconds, newest = t.args.checkpoint.grace_s, t.last_checkpoint
  if not seconds then return end
  local text = ('error: [trainer.grace] the run did not end within checkpoint.grace_s = %d s of '
    .. 'SIGTERM; it ends now, and nothing is saved of the steps since %s\n'):format(seconds, newest
    and 'checkpoint ' .. newest or 'its start')
  process.limit_end(seconds, t.rank == 0 and text or '')
end

-- Takes the save under way one step further; it is over where that fails, too.
local function go_on(t)
  local under_way = t.saving
  t.saving = nil
  if not under_way:go_on() then
    t.saving = under_way
  else
    M.limit_end(t)
  end
end

--- Whether this rank still writes a checkpoint beside training.
---@param t nnscaler.Trainer
---@return boolean
function M.busy(t) return t.saving ~= nil and not t.saving:done() end

--- Goes on with a save beside training when no rank is busy with it. A collective.
---@param t nnscaler.Trainer
function M.poll(t)
  if t.saving then go_on(t) end
end

--- Waits until the checkpoint that is written beside training is there. A collective.
---@param t nnscaler.Trainer
function M.wait(t)
  while t.saving do go_on(t) end
end

--- Gets ready to save beside training, once the optimizer has its state. A collective.
---@param t nnscaler.Trainer
function M.prepare(t)
  if t.args.checkpoint.async and not t.args.checkpoint.no_save and not t.snapshot then
    saving.reserve(t)
  end
end

--- Has the copies made that a save beside training is still making: weights are about to change.
---@param t nnscaler.Trainer
function M.settle(t)
  if t.saving and t.saving.beside then t.saving:settle() end
end

--- Saves the state after t.step steps, with checkpoint.async beside the steps that follow.
---@param t nnscaler.Trainer
---@param last boolean whether none follow
function M.save(t, last)
  launch.at_phase 'save'
  M.wait(t)
  local began = base.clock()
  local options, loss = t.args.checkpoint, quality(t)
  local shown = loss or t.train_loss
  t:say('info', 'Saving checkpoint after %d steps with loss=%s.', t.step, format.short(shown))
  local epoch = batches.last_epoch(t)
  local folder = options.save_dir:gsub('^%./', '')
  t:say('info', 'Saving checkpoint to %s/%04d-%04d', folder, epoch, t.step)
  local best = options.save_best and loss ~= nil and loss < t.best_loss
  local before = t.best_loss
  if best then t.best_loss = loss end
  local pointers = {}
  if options.save_last then
    t:say('info', 'Saving checkpoint as the last checkpoint.')
    pointers[#pointers + 1] = 'last'
  end
  if best then
    t:say('info', 'Best loss updated: %s -> %s', format.short(before), format.short(loss))
    t:say('info', 'Saving checkpoint as the best checkpoint.')
    pointers[#pointers + 1] = 'best'
  end
  local own = t.optimizer:state()
  local contents = {
    save_dir = options.save_dir, epoch = epoch, step = t.step, aliases = t.model:tied_names(),
    pointers = pointers, keep = options.keep_last_n_checkpoints,
    copy_pointers = options.symlink_best_and_last == false,
    state = {
      step = t.step, seed = t.seed, position = resume.position(t), best_loss = t.best_loss,
      train_loss = t.train_loss, val_loss = t.val_loss, history = t.history:state(),
      updates = t.store:counts(own.counts), job = describe_job(t.args),
      vocabulary = vocabulary(t), user = {},
      loss_scale = t.loss_scale and t.loss_scale:state(),
    },
  }
  local user = contents.state.user
  contents.user = user
  t.hooks:fire('on_save_checkpoint', t, contents)
  if contents.user ~= user then contents.state.user = contents.user end
  local beside = options.async == true and not last
  t.saving = saving.begin(t, contents, own, beside)
  t.save_wait = base.clock() - began
  if not beside then
    M.wait(t)
    t.save_wait = base.clock() - began
  end
  t.saved_step = t.step
end

return M
