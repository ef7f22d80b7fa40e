--- Memory of the ranks of a plan by kind, and over the time of a step; bytes that they send.
local format = require 'nnscaler.format'
local traffic = require 'nnscaler.runtime.traffic'
local units = require 'nnscaler.units'

local M = {}

local kPoints = 12 -- of a course

--- What ranks hold, by kind.
---@param e nnscaler.Explained
---@param add fun(text: string, ...: any)
function M.kinds(e, add)
  add('%-14s %11s %11s %11s %11s %11s %11s %11s', 'memory of rank', 'weights', 'gradients',
    'optimizer', 'buffers', 'saved', 'peak', 'total')
  for _, rank in ipairs(e.account.ranks) do
    local m = rank.memory
    add('%-14s %11s %11s %11s %11s %11s %11s %11s',
      rank.ranks > 1 and ('%d (of %d)'):format(rank.rank, rank.ranks) or tostring(rank.rank),
      units.bytes(m.parameters), units.bytes(m.gradients), units.bytes(rank.state),
      units.bytes(m.buffers + m.constants), units.bytes(m.saved), units.bytes(m.peak),
      units.bytes(m.total + rank.state))
  end
end

--- What ranks send.
---@param e nnscaler.Explained
---@param add fun(text: string, ...: any)
function M.moved(e, add)
  local micro = e.settings.micro_batches or 1
  local skeleton = e.line:skeleton(e.graph, e.line.plan)
  for _, rank in ipairs(e.account.ranks) do
    local list, text = skeleton:traffic(rank.rank), {}
    for i, t in ipairs(traffic.step(list, micro)) do text[i] = ('%d %s'):format(t.calls, t.op) end
    add('bytes moved by rank %d in a step: %s%s', rank.rank,
      units.bytes(traffic.bytes(list, micro)),
      #text > 0 and ' (' .. table.concat(text, ', ') .. ')' or '')
  end
end

--- Bytes that a rank holds over the time of a step: while each part runs, and behind it.
---@param account nnscaler.StepAccount
---@param rank nnscaler.RankAccount
---@return { start: number, stop: number, top: number, after: number }[]
function M.course(account, rank)
  local out, rest = {}, rank.memory.total - rank.memory.peak + rank.state
  for i, part in ipairs(account.line[rank.row]) do
    out[i] = { start = part.start, stop = part.stop, top = rest + rank.course[i][1],
      after = rest + rank.course[i][2] }
  end
  return out
end

--- Memory over time: the most in each of some equal parts of a step.
---@param e nnscaler.Explained
---@param add fun(text: string, ...: any)
function M.over_time(e, add)
  local last = 0
  for _, line in ipairs(e.account.line) do
    if #line > 0 then last = math.max(last, line[#line].stop) end
  end
  if last == 0 then return end
  add('memory over time: the most in each %dth of the parts of a step, %s each', kPoints,
    format.seconds(last / kPoints))
  for _, rank in ipairs(e.account.ranks) do
    local text, course = {}, M.course(e.account, rank)
    local held = rank.memory.total - rank.memory.peak + rank.state
    for k = 1, kPoints do
      local from, to, most = (k - 1) * last / kPoints, k * last / kPoints, held
      for _, part in ipairs(course) do
        if part.start < to and part.stop > from then most = math.max(most, part.top) end
        if part.stop <= to then held = part.after end
      end
      text[k] = units.bytes(math.max(most, held))
    end
    add('  rank %d%s: %s', rank.rank, rank.ranks > 1 and (' (of %d)'):format(rank.ranks) or '',
      table.concat(text, ', '))
  end
end

return M
