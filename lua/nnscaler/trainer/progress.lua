--- What a person sees of a run: a bar on a terminal, plain lines elsewhere.
local base = require 'nnscaler._C.base'
local format = require 'nnscaler.format'

local M = {}

---@class nnscaler.trainer.Progress
local Progress = {}
Progress.__index = Progress

local kWidth, kInterval = 24, 0.1 -- characters of the bar, seconds between drawings

---@param options { bar: boolean, every: integer, log: nnscaler.Logger, total: integer,
---  steps_per_epoch: integer|nil }
---@return nnscaler.trainer.Progress
function M.new(options)
  local self = setmetatable({ options = options, drawn = false, last = 0 }, Progress)
  self.per = options.steps_per_epoch or options.total
  self.digits = '%0' .. #tostring(self.per) .. 'd'
  self.bar = options.bar and base.stderr_is_terminal()
  return self
end

local function numbers(metrics)
  local parts = {}
  for _, key in ipairs { 'train_loss', 'lr', 'gnorm', 'train_wall' } do
    parts[#parts + 1] = key .. '=' .. format.short(metrics[key])
  end
  return table.concat(parts, ', ')
end

--- Shows a step. `force` writes the line, whatever the interval, on a terminal too.
---@param epoch integer
---@param index integer steps done in the epoch
---@param step integer steps done in all
---@param metrics table<string, number>
---@param force boolean
function Progress:show(epoch, index, step, metrics, force)
  if self.bar and not force then return self:draw(epoch, index, step, metrics) end
  if not force and step % self.options.every ~= 0 then return end
  self:clear()
  self.options.log.info('Epoch %d: %s/%d %s', epoch, self.digits:format(index), self.per,
    numbers(metrics))
end

function Progress:draw(epoch, index, step, metrics)
  local now = base.clock()
  if self.epoch ~= epoch then
    self.epoch, self.start, self.from = epoch, now - metrics.step_s, index - 1
  end
  if now - self.last < kInterval then return end
  self.last = now
  local full = math.floor(kWidth * index / self.per)
  local rate = (index - self.from) / (now - self.start)
  local left = math.min(self.per - index, self.options.total - step)
  base.stderr_write(('\r\27[KEpoch %d: %3d%% %s%s %d/%d %.1f/s %s left, %s'):format(epoch,
    math.floor(100 * index / self.per), ('█'):rep(full), ('░'):rep(kWidth - full), index, self.per,
    rate, format.duration(left / rate), numbers(metrics)))
  self.drawn = true
end

--- Makes room for a log line.
function Progress:clear()
  if self.drawn then base.stderr_write '\r\27[K' end
  self.drawn = false
end

return M
