--- The predicted step of a plan as a Chrome trace (chrome://tracing, Perfetto): one row a pipeline
--- rank, one event a part, then the sums of gradients and the updates.
local base = require 'nnscaler._C.base'

local M = {}

local names = { F = 'forward', B = 'backward', W = 'gradients of weights' }

-- Trace times are microseconds.
local function event(name, rank, start, stop, args)
  return { name = name, cat = 'predicted', ph = 'X', pid = 0, tid = rank, ts = start * 1e6,
    dur = (stop - start) * 1e6, args = args }
end

--- The trace as JSON.
---@param account nnscaler.StepAccount
---@param name string of the job
---@return string
function M.json(account, name)
  local events, last = {}, 0
  for _, line in ipairs(account.line) do
    for _, t in ipairs(line) do last = math.max(last, t.stop) end
  end
  events[1] = { name = 'process_name', ph = 'M', pid = 0, tid = 0,
    args = { name = ('%s, predicted'):format(name) } }
  for r, line in ipairs(account.line) do
    events[#events + 1] = { name = 'thread_name', ph = 'M', pid = 0, tid = r - 1,
      args = { name = ('pipeline rank %d'):format(r - 1) } }
    for _, t in ipairs(line) do
      events[#events + 1] = event(('%s %d'):format(names[t.kind], t.micro), r - 1, t.start, t.stop,
        { stage = t.stage, micro_batch = t.micro })
    end
    local summed = last + account.sums
    if account.sums > 0 then
      events[#events + 1] = event('sums of gradients', r - 1, last, summed, { step = true })
    end
    if account.update > 0 then
      events[#events + 1] = event('update', r - 1, summed, summed + account.update,
        { step = true })
    end
  end
  return base.json_encode { traceEvents = events, displayTimeUnit = 'ms' } .. '\n'
end

return M
