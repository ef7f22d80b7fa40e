--- Times instructions of programs, while a window is open. Functions are wrapped only in runs that
--- ask for it (`enable`, before any program is loaded), so that all others pay nothing.
local base = require 'nnscaler._C.base'

---@class nnscaler.runtime.profile
---@field marks number[]|nil where it is there: when each call began, which is all that is noted
---@field clock fun(): number of the marks
---@field aside number seconds of what marks leave out
local M = { enabled = false, open = false, events = {}, clock = base.clock, aside = 0 }

---@class nnscaler.ProfileEvent
---@field name string
---@field kind 'phase'|'compute'|'communication'|'waiting'|'data'
---@field from number seconds of the host's clock
---@field to number
---@field line integer|nil of the program's file
---@field ranks string|nil of a collective: its group

--- Makes this run one that can be timed.
function M.enable() M.enabled = true end

-- The group of a collective among its arguments.
local function group_of(...)
  for i = 1, select('#', ...) do
    local argument = select(i, ...)
    if type(argument) == 'table' and rawget(argument, 'handle') then
      return table.concat(argument, ',')
    end
  end
  return nil
end

local function note(event, ...)
  event.to = base.clock()
  M.events[#M.events + 1] = event
  return ...
end

--- The function, timed while the window is open.
---@generic F
---@param kind string
---@param name string
---@param f F
---@return F
function M.timed(kind, name, f)
  return function(...)
    if M.marks then
      M.marks[#M.marks + 1] = M.now()
      return f(...)
    end
    if not M.open then return f(...) end
    local caller = debug.getinfo(2, 'Sl')
    local line = caller.source:sub(1, 1) == '@' and not caller.source:find '^@nnscaler/'
      and caller.currentline or nil
    return note({ name = name, kind = kind, line = line, from = base.clock(),
      ranks = kind == 'communication' and group_of(...) or nil }, f(...))
  end
end

local inside = false -- of a function that is left out

--- The function, whose seconds no mark counts.
---@generic F
---@param f F
---@return F
function M.left_out(f)
  return function(...)
    if inside then return f(...) end
    inside = true
    local start = M.clock()
    local function finish(...)
      inside, M.aside = false, M.aside + M.clock() - start
      return ...
    end
    return finish(f(...))
  end
end

--- Seconds of the marks' clock without what is left out.
---@return number
function M.now() return M.clock() - M.aside end

--- Times methods of a class.
---@param kind string
---@param class table
---@param names table<string, string> method → name of the event
function M.methods(kind, class, names)
  for method, name in next, names do class[method] = M.timed(kind, name, class[method]) end
end

return M
