--- Goes on from a checkpoint: everything is checked before anything is changed.
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'
local fail = require 'nnscaler.fail'
local history = require 'nnscaler.trainer.history'
local shapes = require 'nnscaler.checkpoint.shapes'
local shared_checkpoint = require 'nnscaler.trainer.shared_checkpoint'

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

-- What the position in the data depends on has to be as it was.
local function check_position(t, state, path)
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
  if state.seed ~= t.seed then
    t.log.warning("'%s' was written with seed=%d, this job has seed=%d: data order and random "
      .. 'numbers will differ from the run that wrote it', path, state.seed, t.seed)
  end
end

---@param t nnscaler.Trainer
function M.run(t)
  if t.args.checkpoint.resume_from == nil then return end
  local saved
  if t.sharing then
    saved = shared_checkpoint.open(t, find)
  else
    local path = find(t)
    saved = path and checkpoint.open(path)
  end
  if not saved then return end
  local path = saved.path
  local weights, state = t.store:weights(), saved.state
  local filed = shapes.to_file(t.model, weights)
  t.hooks:fire('on_load_checkpoint', t, saved)
  saved:check(filed)
  check_position(t, state, path)
  local optimizer = shapes.to_model(t.model, saved:optimizer())
  t.optimizer:load_state { counts = state.updates, tensors = t.store:own_optimizer(optimizer) }
  saved:copy_to(filed)
  t.store:load_weights(weights)
  t.step, t.best_loss = state.step, state.best_loss
  t.train_loss, t.val_loss = state.train_loss, state.val_loss
  t.history = history.new(state.history)
  t.saved_step, t.validated_step, t.last_checkpoint = t.step, t.step, path
  t.hooks:fire('after_load_checkpoint', t, saved)
  t.log.info('Resumed from %s after %d steps.', path, t.step)
end

return M
