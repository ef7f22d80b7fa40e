--- A report of a plan as one page without anything from elsewhere: the predicted time line, memory
--- of each class of ranks by kind, bytes moved, what else was priced, and the report as text; light
--- and dark as the reader's system is.
local course = require 'nnscaler.explain.memory'
local explain = require 'nnscaler.explain'
local format = require 'nnscaler.format'
local traffic = require 'nnscaler.runtime.traffic'
local units = require 'nnscaler.units'

local M = {}

local kStyle = [[
:root{color-scheme:light dark;--f:#3b7dd8;--b:#d8733b;--w:#8a5bc7;--s:#3ba36b;--i:#888;--line:#8884}
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;
background:#fff;color:#1b1b1b}
@media (prefers-color-scheme:dark){body{background:#16181c;color:#e6e6e6}}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse}td,th{padding:.2rem .7rem;border-bottom:1px solid var(--line);
text-align:right}td:first-child,th:first-child{text-align:left}
pre{overflow:auto;font-size:12px;border:1px solid var(--line);padding:1rem}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:currentColor}
.F{fill:var(--f)}.B{fill:var(--b)}.W{fill:var(--w)}.S{fill:var(--s)}.I{fill:var(--i)}
.scroll{overflow-x:auto}.key i{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em}]]

local entities = { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;' }

--- Text as it may stand in a page.
---@param text string
---@return string
function M.escape(text) return (tostring(text):gsub('[&<>"]', entities)) end

local kWide, kRow, kLeft = 1000, 22, 70

local function rect(class, x, y, width, title, height)
  return ('<rect class="%s" x="%.2f" y="%d" width="%.2f" height="%d"><title>%s</title></rect>')
    :format(class, x, y, width, height or kRow - 4, M.escape(title))
end

local function label(x, y, text)
  return ('<text x="%.1f" y="%d">%s</text>'):format(x, y, M.escape(text))
end

local function picture(rows, lines)
  return ('<svg viewBox="0 0 %d %d" role="img">%s</svg>'):format(kWide + kLeft + 90,
    rows * kRow + 4, table.concat(lines, '\n'))
end

-- Words with the colours that stand for them.
local function key(parts)
  local out = {}
  for i, part in ipairs(parts) do
    out[i] = ('<i style="background:var(--%s)"></i>%s'):format(part[1], part[2])
  end
  return '<p class="key">' .. table.concat(out) .. '</p>'
end

local names = { F = 'forward', B = 'backward', W = 'gradients of weights' }

local function time_line(account)
  local out, last = {}, account.seconds
  for r, line in ipairs(account.line) do
    local y, stop = (r - 1) * kRow, 0
    out[#out + 1] = label(0, y + 14, ('rank %d'):format(r - 1))
    for _, t in ipairs(line) do
      stop = math.max(stop, t.stop)
      out[#out + 1] = rect(t.kind, kLeft + kWide * t.start / last, y,
        math.max(0.5, kWide * (t.stop - t.start) / last - 0.4),
        ('%s of micro-batch %d, stage %d: %s'):format(names[t.kind], t.micro, t.stage,
          format.seconds(t.stop - t.start)))
    end
  end
  local parts = last - account.sums - account.update
  for r = 1, #account.line do
    out[#out + 1] = rect('S', kLeft + kWide * parts / last, (r - 1) * kRow,
      kWide * (last - parts) / last, ('sums %s, updates %s'):format(
        format.seconds(account.sums), format.seconds(account.update)))
  end
  return picture(#account.line, out)
end

local function memory(account)
  local out, most = {}, 1
  for _, rank in ipairs(account.ranks) do
    most = math.max(most, rank.memory.total + rank.state)
  end
  for r, rank in ipairs(account.ranks) do
    local m, x, y = rank.memory, kLeft, (r - 1) * kRow
    out[#out + 1] = label(0, y + 14, ('rank %d'):format(rank.rank))
    for _, part in ipairs { { 'F', 'weights', m.parameters }, { 'B', 'gradients', m.gradients },
      { 'W', 'optimizer', rank.state }, { 'I', 'buffers', m.buffers + m.constants },
      { 'S', 'activations at the peak', m.peak } } do
      local width = kWide * part[3] / most
      out[#out + 1] = rect(part[1], x, y, width, ('%s %s'):format(part[2], units.bytes(part[3])))
      x = x + width
    end
    out[#out + 1] = label(x + 4, y + 14, units.bytes(m.total + rank.state))
  end
  return picture(#account.ranks, out)
end

-- What each class of ranks holds over the time of a step: a line over what rests.
local function curves(account)
  local out, last, most, kHigh = {}, account.seconds, 1, 90
  for _, rank in ipairs(account.ranks) do
    most = math.max(most, rank.memory.total + rank.state)
  end
  for r, rank in ipairs(account.ranks) do
    local base = (r - 1) * (kHigh + 14) + kHigh
    local rest = rank.memory.total - rank.memory.peak + rank.state
    local function point(at, bytes)
      return ('%.2f,%.2f'):format(kLeft + kWide * at / last, base - (kHigh - 6) * bytes / most)
    end
    local points, held = { ('%.2f,%d'):format(kLeft, base), point(0, rest) }, rest
    for _, part in ipairs(course.course(account, rank)) do
      for _, corner in ipairs { { part.start, held }, { part.start, part.top },
        { part.stop, part.top }, { part.stop, part.after } } do
        points[#points + 1] = point(corner[1], corner[2])
      end
      held = part.after
    end
    points[#points + 1] = point(last, held)
    points[#points + 1] = ('%.2f,%d'):format(kLeft + kWide, base)
    out[#out + 1] = label(0, base - 4, ('rank %d'):format(rank.rank))
    out[#out + 1] = ('<polygon class="S" points="%s"><title>rank %d: %s at most</title></polygon>')
      :format(table.concat(points, ' '), rank.rank, units.bytes(rank.memory.total + rank.state))
    out[#out + 1] = rect('F', kLeft, base - (kHigh - 6) * rest / most, kWide,
      ('what rests: %s'):format(units.bytes(rest)), 2)
    out[#out + 1] = label(kLeft + kWide + 4, base - kHigh + 14, units.bytes(rank.memory.total
      + rank.state))
  end
  return ('<svg viewBox="0 0 %d %d" role="img">%s</svg>'):format(kWide + kLeft + 90,
    #account.ranks * (kHigh + 14) + 4, table.concat(out, '\n'))
end

local function row(cells, cell)
  local out = {}
  for i, text in ipairs(cells) do
    out[i] = ('<%s>%s</%s>'):format(cell or 'td', M.escape(text), cell or 'td')
  end
  return '<tr>' .. table.concat(out) .. '</tr>'
end

local function links(e)
  local skeleton, micro = e.line:skeleton(e.graph, e.line.plan), e.settings.micro_batches or 1
  local head = { 'rank', 'part', 'operation', 'ranks', 'calls a step', 'bytes a step' }
  local out = { row(head, 'th') }
  for _, rank in ipairs(e.account.ranks) do
    for _, t in ipairs(skeleton:traffic(rank.rank)) do
      local times = t.segment == 'step' and 1 or micro
      out[#out + 1] = row { rank.rank, t.segment, t.op, t.ranks == 0 and 'two' or t.ranks,
        t.calls * times, units.bytes(t.bytes * times) }
    end
    out[#out + 1] = row { rank.rank, 'all', '', '', '',
      units.bytes(traffic.bytes(skeleton:traffic(rank.rank), micro)) }
  end
  return '<div class="scroll"><table>' .. table.concat(out, '\n') .. '</table></div>'
end

--- The page.
---@param e nnscaler.Explained
---@param comparison string|nil what else was priced
---@param report string
---@return string
function M.page(e, comparison, report)
  local out = {}
  local function add(text, ...)
    out[#out + 1] = select('#', ...) > 0 and text:format(...) or text
  end
  local name = M.escape(e.line.source.name)
  add('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">')
  add('<meta name="viewport" content="width=device-width,initial-scale=1">')
  add('<title>Plan of %s</title>\n<style>%s</style></head><body>', name, kStyle)
  add('<h1>Plan of %s</h1>', name)
  add('<p>Predicted step %s, at most %s a device.</p>', format.seconds(e.account.seconds),
    units.bytes(e.account.total))
  add('<h2>Time line</h2>\n%s', key { { 'f', 'forward' }, { 'b', 'backward' },
    { 'w', 'gradients of weights apart' }, { 's', 'sums and updates' } })
  out[#out + 1] = time_line(e.account)
  add('<h2>Memory</h2>\n%s\n<p>One row for ranks that hold the same.</p>', key { { 'f', 'weights' },
    { 'b', 'gradients' }, { 'w', 'optimizer' }, { 'i', 'buffers' },
    { 's', 'activations at the peak' } })
  out[#out + 1] = memory(e.account)
  add('<h2>Memory over time</h2>\n<p>What a rank holds while a step runs; the line is what '
    .. 'rests.</p>')
  out[#out + 1] = curves(e.account)
  add '<h2>Links</h2>'
  out[#out + 1] = links(e)
  if comparison then
    add '<h2>Alternatives</h2>'
    out[#out + 1] = '<pre>' .. M.escape(comparison) .. '</pre>'
  end
  add '<h2>Plan by module</h2>'
  out[#out + 1] = '<pre>' .. M.escape(explain.plan(e.line.plan)) .. '</pre>'
  add '<h2>Report</h2>'
  out[#out + 1] = '<pre>' .. M.escape(report) .. '</pre>'
  out[#out + 1] = '</body></html>\n'
  return table.concat(out, '\n')
end

return M
