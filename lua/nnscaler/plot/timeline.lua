--- Time lines of pipeline schedules as text: one row a pipeline rank, one cell a unit of time.
local M = {}

local kWidth = 150 -- columns of a row

local function labels(lines)
  local stages, most = {}, 1
  for r, line in ipairs(lines) do
    stages[r] = {}
    local count = 0
    for _, t in ipairs(line) do
      if not stages[r][t.stage] then
        stages[r][t.stage], count = true, count + 1
      end
    end
    most = math.max(most, count)
  end
  return function(t)
    return most > 1 and ('%s%d:%d'):format(t.kind, t.stage, t.micro) or t.kind .. t.micro
  end
end

local function row(line, label, cell, last)
  local text, now = {}, 0
  local function fill(mark, from, to)
    for _ = from, to - 1 do text[#text + 1] = mark .. (' '):rep(cell - #mark) end
  end
  for _, t in ipairs(line) do
    fill('.', now, t.start)
    local name, columns = label(t), (t.stop - t.start) * cell
    text[#text + 1] = name .. ('='):rep(columns - #name - 1) .. ' '
    now = t.stop
  end
  fill('.', now, last)
  local all = (table.concat(text):gsub('%s+$', ''))
  if #all > kWidth then all = all:sub(1, kWidth - 4) .. ' ...' end
  return all
end

--- Returns the drawing: each part under its kind (F, B, W) and micro-batch, with the stage in front
--- where ranks have several; the share of time that ranks idle; and the makespan, at the end of
--- which all ranks meet to clip gradients.
---@param lines { kind: string, stage: integer, micro: integer, start: number, stop: number }[][]
---@return string
function M.draw(lines)
  local label, cell, last = labels(lines), 2, 0
  for _, line in ipairs(lines) do
    for _, t in ipairs(line) do
      cell, last = math.max(cell, #label(t) + 1), math.max(last, t.stop)
    end
  end
  local out, busy_all = {}, 0
  for r, line in ipairs(lines) do
    local busy = 0
    for _, t in ipairs(line) do busy = busy + t.stop - t.start end
    busy_all = busy_all + busy
    local own = #line > 0 and line[#line].stop - line[1].start - busy or 0
    out[#out + 1] = ('rank %-2d| %s'):format(r - 1, row(line, label, cell, last))
    out[#out + 1] = ('       | idle %g of %g, %g between its first and last part'):format(
      last - busy, last, own)
  end
  local idle = last > 0 and 1 - busy_all / (#lines * last) or 0
  out[#out + 1] = ('makespan %g up to the barrier of clipping; idle %.1f %%'):format(last,
    100 * idle)
  return table.concat(out, '\n')
end

return M
