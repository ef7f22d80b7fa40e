--- Learning-rate schedules. A schedule is a pure function of the number of steps done: nothing to
--- save, nothing to restore, and a resumed run sees the same values.
---
--- `{ type = 'cosine', args = { warmup_steps = 100, min_lr = 1e-4 }, interval = 'step' }`; a type
--- with a dot, or one that is not listed here, is a module of the user found by `require`. A module
--- returns `function(args, context) → function(t) → lr`, where t counts from 0 in units of the
--- interval and context is { lr =, horizon = }.
local fail = require 'nnscaler.fail'
local nearest = require 'nnscaler.nearest'
local resolve = require 'nnscaler.resolve'
local sorted = require 'nnscaler.sorted'

local M = {}

---@class nnscaler.ScheduleContext
---@field lr number the optimizer's learning rate
---@field horizon integer units of the interval until the end of the run
---@field steps_per_epoch integer|nil

local what = {
  key = 'lr_scheduler.type', prefix = 'nnscaler.schedules.',
  builtin = { 'constant', 'cosine', 'linear' },
  expects = 'a function (args, context) that returns a function of the step',
}

local function factory_of(kind)
  local factory = resolve(what, kind)
  if type(factory) ~= 'function' then
    fail('usage', what.key, ("'%s' is a %s; expected %s"):format(tostring(kind), type(factory),
      what.expects))
  end
  return factory
end

--- Makes the schedule of a job.
---@param config { type?: string|function, args?: table, interval?: string }|function|nil
---  nil: constant
---@param context { lr: number, total_steps: integer, steps_per_epoch: integer|nil,
---  epochs: integer|nil }
---@return fun(step: integer, epoch?: integer): number lr learning rate of the step that follows
---  `step` done ones, in this epoch where steps of an epoch are not equally many
function M.new(config, context)
  if type(config) == 'function' then config = { type = config } end
  config = config or {}
  local interval = config.interval or 'step'
  local horizon, per = context.total_steps, 1
  if interval == 'epoch' then
    if not context.steps_per_epoch then
      fail('usage', 'lr_scheduler.interval', "interval 'epoch' on a data set without epochs; "
        .. "expected 'step', or a sampler with epochs")
    end
    per = context.steps_per_epoch
    horizon = context.epochs or math.ceil(horizon / per)
  elseif interval ~= 'step' then
    fail('usage', 'lr_scheduler.interval',
      ("unknown interval '%s'; expected 'step' or 'epoch'"):format(tostring(interval)))
  end
  local curve = factory_of(config.type or 'constant')(config.args or {}, {
    lr = context.lr, horizon = horizon, steps_per_epoch = context.steps_per_epoch,
  })
  if interval == 'step' then return curve end
  return function(step, epoch) return curve(epoch or math.floor(step / per)) end
end

--- Reads the arguments that the built-in schedules share and refuses others.
---@param name string of the schedule, for messages
---@param args table
---@param context nnscaler.ScheduleContext
---@return { warmup: number, stop: number, min_lr: number, lr: number }
function M.shared(name, args, context)
  for key in sorted.sorted_pairs(args) do
    if key ~= 'warmup_steps' and key ~= 'min_lr' and key ~= 'decay_steps' then
      fail('usage', 'lr_scheduler.args', ("unknown key '%s' of schedule '%s'; expected "
        .. 'decay_steps, min_lr, warmup_steps'):format(tostring(key), name),
        nearest(key, { 'decay_steps', 'min_lr', 'warmup_steps' }))
    end
  end
  local warmup, stop = args.warmup_steps or 0, args.decay_steps or context.horizon
  if warmup < 0 then
    fail('usage', 'lr_scheduler.args', 'warmup_steps is ' .. warmup .. '; expected 0 or more')
  end
  return { warmup = warmup, stop = stop, min_lr = args.min_lr or 0, lr = context.lr }
end

--- Learning rate while warming up: rises from lr/(warmup+1) to lr·warmup/(warmup+1).
---@param s table what `shared` returned
---@param t integer
---@return number
function M.warm(s, t) return s.lr * (t + 1) / (s.warmup + 1) end

return M
