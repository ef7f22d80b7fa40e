--- What the user sees of a run: a bar below the log on a terminal, plain lines elsewhere.
local base = require 'nnscaler._C.base'
local format = require 'nnscaler.format'

local M = {}

---@class nnscaler.trainer.Progress
local Progress = {}
Progress.__index = Progress

local kBar, kLeastBar, kInterval = 24, 8, 0.1 -- characters of the bar, seconds between drawings

---@param options { bar: boolean, every: integer, log: nnscaler.Logger, total: integer }
---@return nnscaler.trainer.Progress
function M.new(options)
  local self = setmetatable({ options = options, last = 0 }, Progress)
  self.bar = options.bar and base.terminal_columns() ~= nil
  return self
end

--- Says how many steps the epoch that begins has; nil without epochs.
---@param steps integer|nil
function Progress:begin_epoch(steps)
  self.per = steps or self.options.total
  self.digits = '%0' .. #tostring(self.per) .. 'd'
end

local kShown = { 'train_loss', 'lr', 'gnorm', 'train_wall' }

local function numbers(metrics)
  local parts = {}
  for i, key in ipairs(kShown) do parts[i] = key .. '=' .. format.short(metrics[key]) end
  return parts
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
    table.concat(numbers(metrics), ', '))
end

--- The line of a bar in a terminal of so many columns; the last one stays free, where a cursor
--- behind it would wrap. What does not fit is left out from the end, then the bar becomes shorter.
---@param head string before the bar
---@param done number from 0 to 1
---@param parts string[] behind the bar, the most important first
---@param columns integer
---@return string text, integer width in columns
function M.line(head, done, parts, columns)
  local room = columns - 1 - #head
  local tail, used = '', 0
  for i, part in ipairs(parts) do
    local more = (i > 2 and ', ' or ' ') .. part
    if used + #more > room - (i == 1 and 0 or kLeastBar) then break end
    tail, used = tail .. more, used + #more
  end
  local bar = math.max(0, math.min(kBar, room - used))
  local full = math.floor(bar * done)
  local text = head .. ('█'):rep(full) .. ('░'):rep(bar - full) .. tail
  if #head + bar + used > columns - 1 then -- a terminal too narrow for the head
    text = head:sub(1, columns - 1)
    return text, #text
  end
  return text, #head + bar + used
end

function Progress:draw(epoch, index, step, metrics)
  local now = base.clock()
  if self.epoch ~= epoch then
    self.epoch, self.start, self.from = epoch, now - metrics.step_s, index - 1
  end
  if now - self.last < kInterval then return end
  self.last = now
  local rate = (index - self.from) / (now - self.start)
  local left = math.min(self.per - index, self.options.total - step)
  local parts = { ('%d/%d'):format(index, self.per),
    ('%.1f/s %s left'):format(rate, format.duration(left / rate)), unpack(numbers(metrics)) }
  base.set_status(M.line(('Epoch %d: %3d%% '):format(epoch, math.floor(100 * index / self.per)),
    index / self.per, parts, base.terminal_columns() or 80))
end

--- Takes the bar away.
function Progress:clear()
  if self.bar then base.set_status('', 0) end
end

return M
