--- `profile.file`: the instructions of some steps, timed on all ranks, as a Chrome trace
--- (chrome://tracing, ui.perfetto.dev). One process a rank; an event is an instruction of the
--- program with its line in the generated file, or a phase of the step around them.
---
--- Kinds: compute, communication, waiting, data, phase. The time that a rank spends in a collective
--- before the last of its group has come is waiting, the rest communication; so are the waits for
--- sums of gradients that run beside backward, and receives, whose sender is not asked.
--- All times are of one clock: that of the host, and between hosts, of the moment at which all
--- leave a barrier at the start of the window.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local recorder = require 'nnscaler.runtime.profile'
local ranks = require 'nnscaler.ranks'
local states = require 'nnscaler.runtime.states'

local M = {}

---@class nnscaler.trainer.Profile
local Window = {}
Window.__index = Window

--- To be called before programs are made.
---@param job nnscaler.Job
function M.prepare(job)
  if not job.profile.file then return end
  if job.eager then
    fail('usage', 'profile.file', 'eager=true has no program whose instructions could be timed',
      'leave out one of them')
  end
  recorder.enable()
  recorder.methods('compute', states.States, { scale = 'scale gradients', squares = 'norm',
    clip = 'clip', update = 'update weights' })
  recorder.methods('waiting', states.States, { wait = 'wait for sums of gradients' })
end

--- The window of a run; nil where the job asks for none.
---@param t nnscaler.Trainer
---@return nnscaler.trainer.Profile|nil
function M.new(t)
  local options = t.args.profile
  if not options.file then return nil end
  recorder.methods('phase', getmetatable(t.engine).__index, { forward = 'forward',
    backward = 'backward', zero_grad = 'zero gradients' })
  for _, part in ipairs { 'sum', 'scale', 'norm', 'clip', 'update' } do
    t.update[part] = recorder.timed('phase', 'step: ' .. part, t.update[part])
  end
  return setmetatable({ file = options.file, first = options.start,
    last = options.start + options.steps - 1 }, Window)
end

--- Opens the window where it begins.
---@param t nnscaler.Trainer
function Window:before_step(t)
  if self.done or recorder.open or t.step + 1 < self.first or t.step >= self.last then return end
  ranks.barrier()
  self.origin, self.from = base.clock(), t.step + 1
  recorder.events, recorder.open = {}, true
end

--- Closes it after its last step.
---@param t nnscaler.Trainer
function Window:after_step(t)
  if recorder.open and t.step >= self.last then self:close(t) end
end

-- When the last rank of a group came to its collective number k.
local function arrivals(all)
  local latest = {}
  for _, rank in ipairs(all) do
    local seen = {}
    for _, event in ipairs(rank.events) do
      if event.ranks then
        seen[event.ranks] = (seen[event.ranks] or 0) + 1
        event.key = event.ranks .. '#' .. seen[event.ranks]
        local at = event.from - rank.shift
        latest[event.key] = math.max(latest[event.key] or at, at)
      end
    end
  end
  return latest
end

local kWaiting = { receive = true }

-- The events of all ranks as a Chrome trace; times in microseconds from the start of the window.
local function trace_of(all)
  local left, list = {}, {} -- by host: when the first of its ranks left the barrier
  for _, rank in ipairs(all) do
    left[rank.host] = math.min(left[rank.host] or rank.origin, rank.origin)
  end
  for _, rank in ipairs(all) do rank.shift = left[rank.host] end
  local latest = arrivals(all)
  for r, rank in ipairs(all) do
    list[#list + 1] = { ph = 'M', name = 'process_name', pid = r - 1,
      args = { name = ('rank %d'):format(r - 1) } }
    local function add(event, kind, from, to)
      list[#list + 1] = { ph = 'X', name = event.name, cat = kind, pid = r - 1, tid = 0,
        ts = from * 1e6, dur = math.max(to - from, 0) * 1e6,
        args = event.line and { line = event.line } or nil }
    end
    for _, event in ipairs(rank.events) do
      local from, to = event.from - rank.shift, event.to - rank.shift
      local here = event.key and math.min(math.max(latest[event.key], from), to) or from
      if here > from then add(event, 'waiting', from, here) end
      add(event, kWaiting[event.name] and 'waiting' or event.kind, here, to)
    end
  end
  return list
end

--- Closes the window and writes the file. A collective of all ranks.
---@param t nnscaler.Trainer
function Window:close(t)
  if not recorder.open then return end
  recorder.open, self.done = false, true
  local all = {}
  for r, text in ipairs(ranks.exchange(base.json_encode { origin = self.origin,
    host = t.map.all[t.rank + 1].id, events = recorder.events })) do
    all[r] = base.json_decode(text)
  end
  recorder.events = {}
  if t.rank ~= 0 then return end
  local folder = self.file:match '^(.*)/[^/]*$'
  if folder and folder ~= '' then base.make_folder(folder) end
  base.file_write(self.file, base.json_encode { displayTimeUnit = 'ms',
    traceEvents = trace_of(all) }, 'profile.file')
  t:say('info', 'Profile of steps %d to %d: %s', self.from, t.step, self.file)
end

return M
