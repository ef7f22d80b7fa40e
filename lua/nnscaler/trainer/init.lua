--- The trainer: runs a job. `require('nnscaler.trainer').new(job):run()`.
---
--- Files: setup (makes everything), loop (epochs, and what follows a step), step, evaluate, saver
--- (checkpoints), resume, batches (sizes and positions), progress, history, format.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local hooks = require 'nnscaler.hooks'
local log = require 'nnscaler.log'
local loop = require 'nnscaler.trainer.loop'
local memory = require 'nnscaler.trainer.memory'
local metric_values = require 'nnscaler.loggers.metrics'
local plot = require 'nnscaler.plot'
local process = require 'nnscaler._C.process'
local ranks = require 'nnscaler.ranks'
local save_dir = require 'nnscaler.trainer.save_dir'
local saver = require 'nnscaler.trainer.saver'
local setup = require 'nnscaler.trainer.setup'

local M = {}

---@class nnscaler.Trainer
---@field args table the job
---@field model nnscaler.nn.Module
---@field engine nnscaler.Engine
---@field optimizer nnscaler.Optimizer
---@field update nnscaler.Step the step of the optimizer
---@field store nnscaler.Store
---@field schedule fun(step: integer): number learning rate after `step` steps
---@field train_loader table
---@field val_loader table|nil
---@field test_loader table|nil
---@field hooks nnscaler.Hooks
---@field loggers table[]
---@field rank integer
---@field world_size integer
---@field step integer steps done
---@field epoch integer epoch of the next step, from 0
---@field epoch_step integer steps done in that epoch
---@field epoch_done integer micro-batches done in that epoch
---@field best_loss number
---@field train_loss number|nil of the last step
---@field save_wait number|nil seconds that training waited for the newest save
---@field val_loss number|nil of the last evaluation
---@field test_loss number|nil of the evaluation at the end
local Trainer = {}
Trainer.__index = Trainer

--- Makes a trainer; nothing is built before `run`.
---@param job table a validated job
---@return nnscaler.Trainer
function M.new(job)
  return setmetatable({
    args = job, rank = 0, world_size = 1, units = 1, unit = 0,
    seed = job.seed or 0, step = 0, epoch = 0, epoch_step = 0, epoch_done = 0,
    asked = {}, best_loss = math.huge,
    log = log.logger 'nnscaler.trainer', loggers = {}, hooks = hooks.new(),
  }, Trainer)
end

--- Writes a log line, past the progress bar.
---@param level 'debug'|'info'|'warning'|'error'
---@param text string as string.format takes it, with what follows
function Trainer:say(level, text, ...)
  if self.progress then self.progress:clear() end
  self.log[level](text, ...)
end

--- Ends training at the end of the step, on all ranks, whichever of them calls it.
---@param reason? string said in the log
function Trainer:stop(reason)
  self.stop_reason = reason or ('Stopped by trainer:stop() after %d steps.'):format(self.step)
end

--- Saves a checkpoint at the end of the step; any rank may ask for it.
function Trainer:save()
  if self.args.checkpoint.no_save then
    fail('usage', 'trainer.save', 'trainer:save() in a run with checkpoint.no_save',
      'leave out checkpoint.no_save')
  end
  self.asked.save = true
end

--- Evaluates at the end of the step; any rank may ask for it.
function Trainer:evaluate() self.asked.evaluate = true end

--- Leaves out the update of this step: its gradients are dropped, weights and optimizer stay as
--- they are. Any rank may ask for it, before the hook before_optimizer_step.
function Trainer:skip() self.asked.skip = true end

--- Gives metrics to the loggers.
---@param metrics table<string, number>
---@param tag 'train'|'val'|'test'
function Trainer:log_metrics(metrics, tag)
  metric_values.check(metrics)
  for _, logger in ipairs(self.loggers) do logger:log_metrics(metrics, self.step, { tag = tag }) end
end

--- Tells loggers that nothing more comes for this step.
function Trainer:end_step()
  for _, logger in ipairs(self.loggers) do
    if logger.end_step then logger:end_step() end
  end
end

-- Keeps where an error was raised; library errors have it already.
local function with_traceback(err)
  if type(err) ~= 'table' then
    local text = tostring(err)
    err = setmetatable({ kind = 'model', message = text },
      debug.getregistry()['nnscaler.Error'])
  end
  err.traceback = err.traceback or (debug.traceback('', 2):gsub('^\n', ''))
  return err
end

local function draw_curve(t)
  if t.args.checkpoint.no_save or t.step == 0 or t.rank ~= 0 then return end
  local path = t.args.checkpoint.save_dir .. '/loss.svg'
  base.make_folder(t.args.checkpoint.save_dir)
  base.file_write(path, plot.losses {
    title = ('Loss of %s'):format(t.args.name or 'training'), train = t.history.train,
    val = t.history.val,
  })
  t:say('info', 'Loss curve: %s', (path:gsub('^%./', '')))
end

local function finalize(t)
  process.unwatch_signals()
  if t.progress then t.progress:clear() end
  -- What ends a run by an error leaves a checkpoint under way to a run of one rank; others cannot
  -- count on each other then.
  if not t.sharing then saver.wait(t) end
  save_dir.release(t)
  for _, logger in ipairs(t.loggers) do logger:finalize() end
  t.hooks:fire('on_finalize', t)
end

--- Trains. After SIGINT or SIGTERM the state is saved and the process leaves with 128 + signal.
---@return { step: integer, epoch: integer, reason: string, train_loss: number|nil,
---  val_loss: number|nil, best_loss: number }
function Trainer:run()
  local reason
  local ok, err = xpcall(function()
    setup.run(self)
    process.watch_signals()
    saver.limit_end(self)
    reason = loop.run(self)
    draw_curve(self)
  end, function(err) return with_traceback(memory.explain(self, err)) end)
  local finalized, second = xpcall(finalize, with_traceback, self)
  if not ok then error(err, 0) end
  if not finalized then error(second, 0) end
  if self.signal then
    ranks.finish()
    os.exit(128 + self.signal, true)
  end
  return { step = self.step, epoch = self.epoch, reason = reason, train_loss = self.train_loss,
    val_loss = self.val_loss, best_loss = self.best_loss }
end

return M
