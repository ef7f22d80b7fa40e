--- Writes checkpoints: weights, optimizer, and the state from which a run goes on bit for bit.
--- Position in the data, schedule and random numbers are functions of the step, so the step is
--- enough for them.
local batches = require 'nnscaler.trainer.batches'
local checkpoint = require 'nnscaler.checkpoint'
local format = require 'nnscaler.format'
local launch = require 'nnscaler._C.launch'
local paths = require 'nnscaler._C.checkpoint'
local resume = require 'nnscaler.trainer.resume'
local shapes = require 'nnscaler.checkpoint.shapes'
local shared_saver = require 'nnscaler.trainer.shared_saver'

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

-- Rank 0 writes whole tensors.
local function save_whole(t, contents, own)
  contents.weights = shapes.to_file(t.model, t.store:weights())
  contents.optimizer = shapes.to_file(t.model, t.store:optimizer(own).tensors)
  if t.rank == 0 then t.last_checkpoint = checkpoint.save(contents.save_dir, contents) end
  if t.sharing then t.sharing:barrier() end
end

--- Saves the state after t.step steps.
---@param t nnscaler.Trainer
function M.save(t)
  local options, loss = t.args.checkpoint, quality(t)
  launch.at_phase 'save'
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
  if t.sharing and options.save_type ~= 'merged' then
    if not shared_saver.save(t, contents, own) then save_whole(t, contents, own) end
  else
    save_whole(t, contents, own)
  end
  t.saved_step = t.step
end

return M
