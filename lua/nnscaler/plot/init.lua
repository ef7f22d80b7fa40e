--- Loss curves as SVG files.
local base = require 'nnscaler._C.base'

local M = {}

local kWidth, kHeight = 860, 500
local kLeft, kRight, kTop, kBottom = 72, 28, 58, 58
local kInk, kFaint, kGrid = '#24292f', '#6e7781', '#e7eaee'
local kTrain, kVal = '#2f6fdb', '#d9730d'
local kRuns = { '#9ec1f7', '#d9730d', '#2e7d4f', '#a4262c', '#6f42c1' }
local kFont = 'font-family="Helvetica, Arial, sans-serif"'

local entities = { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;' }
-- Of a text that is not UTF-8 the bytes that XML does not take become question marks.
local function escape(text)
  if not base.is_utf8(text) then text = text:gsub('[\128-\255]', '?') end
  return (text:gsub('[&<>"]', entities))
end

--- Returns round values that cover a range: 4 to 9 of them, at 1, 2 or 5 times a power of ten.
---@param low number
---@param high number
---@return number[] ticks, number step
function M.ticks(low, high)
  local span = high - low
  if span <= 0 then span = math.max(math.abs(high), 1) end
  local step = 10 ^ math.floor(math.log10(span / 5))
  for _, factor in ipairs { 1, 2, 5, 10 } do
    if span / (step * factor) <= 8 then
      step = step * factor
      break
    end
  end
  local ticks = {}
  for k = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) do
    ticks[#ticks + 1] = k * step + 0 -- no -0
  end
  return ticks, step
end

local function label(value, step)
  if math.abs(value) >= 1e6 then return ('%gM'):format(value / 1e6) end
  if math.abs(value) >= 1e4 then return ('%gk'):format(value / 1e3) end
  local decimals = math.max(0, -math.floor(math.log10(step) + 1e-9)) + 0 -- no -0
  return ('%.' .. math.min(decimals, 6) .. 'f'):format(value)
end

-- Mean over a window centred on each point: no lag, unlike a running mean.
local function smooth(values, half)
  local sums, out = { [0] = 0 }, {}
  for i, value in ipairs(values) do sums[i] = sums[i - 1] + value end
  for i = 1, #values do
    local first, last = math.max(1, i - half), math.min(#values, i + half)
    out[i] = (sums[last] - sums[first - 1]) / (last - first + 1)
  end
  return out
end

local function range(series)
  local low, high, last = math.huge, -math.huge, 1
  for _, s in ipairs(series) do
    for i, loss in ipairs(s.loss) do
      low, high = math.min(low, loss), math.max(high, loss)
      last = math.max(last, s.step[i])
    end
  end
  if low > high then low, high = 0, 1 end
  local pad = math.max((high - low) * 0.06, math.abs(high) * 1e-3, 1e-9)
  return low >= 0 and math.max(0, low - pad) or low - pad, high + pad, last
end

local function axes(out, x, y, low, high, last)
  local ys, ystep = M.ticks(low, high)
  for _, value in ipairs(ys) do
    out[#out + 1] = ('<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="%s"/>'):format(kLeft,
      y(value), kWidth - kRight, y(value), kGrid)
    out[#out + 1] = ('<text x="%d" y="%.1f" text-anchor="end" fill="%s">%s</text>'):format(
      kLeft - 10, y(value) + 4, kFaint, label(value, ystep))
  end
  local xs, xstep = M.ticks(0, last)
  for _, value in ipairs(xs) do
    if value == math.floor(value) then
      out[#out + 1] = ('<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s"/>'):format(x(value),
        kHeight - kBottom, x(value), kHeight - kBottom + 5, kFaint)
      out[#out + 1] = ('<text x="%.1f" y="%d" text-anchor="middle" fill="%s">%s</text>'):format(
        x(value), kHeight - kBottom + 20, kFaint, label(value, math.max(xstep, 1)))
    end
  end
  out[#out + 1] = ('<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s"/>'):format(kLeft,
    kHeight - kBottom, kWidth - kRight, kHeight - kBottom, kFaint)
  out[#out + 1] = ('<text x="%.1f" y="%d" text-anchor="middle" fill="%s">step</text>'):format(
    (kLeft + kWidth - kRight) / 2, kHeight - 14, kInk)
  out[#out + 1] = ('<text transform="translate(20 %.1f) rotate(-90)" text-anchor="middle" '
    .. 'fill="%s">loss</text>'):format((kTop + kHeight - kBottom) / 2, kInk)
end

local function line(out, x, y, steps, losses, color, width, opacity)
  local points = {}
  for i, step in ipairs(steps) do points[i] = ('%.1f,%.1f'):format(x(step), y(losses[i])) end
  out[#out + 1] = ('<polyline points="%s" fill="none" stroke="%s" stroke-width="%s" '
    .. 'stroke-opacity="%s" stroke-linejoin="round" stroke-linecap="round"/>'):format(
    table.concat(points, ' '), color, width, opacity)
end

local function dots(out, x, y, series, color, radius)
  for i, step in ipairs(series.step) do
    out[#out + 1] = ('<circle cx="%.1f" cy="%.1f" r="%s" fill="%s" stroke="#ffffff"/>'):format(
      x(step), y(series.loss[i]), radius, color)
  end
end

local function legend(out, entries)
  local right = kWidth - kRight
  for i = #entries, 1, -1 do
    local entry = entries[i]
    local width = 26 + 7.2 * #entry.text
    local at = right - width
    out[#out + 1] = ('<line x1="%.1f" y1="40" x2="%.1f" y2="40" stroke="%s" stroke-width="3" '
      .. 'stroke-linecap="round"/>'):format(at, at + 18, entry.color)
    out[#out + 1] = ('<text x="%.1f" y="44" fill="%s">%s</text>'):format(at + 24, kInk,
      escape(entry.text))
    right = at - 18
  end
end

-- A picture with axes for what lies in `series`, and where a step and a loss stand in it.
local function canvas(title, series)
  local low, high, last = range(series)
  local function x(step) return kLeft + (kWidth - kLeft - kRight) * step / last end
  local function y(loss)
    return kHeight - kBottom - (kHeight - kTop - kBottom) * (loss - low) / (high - low)
  end
  local out = {
    ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
      .. '%s font-size="13">'):format(kWidth, kHeight, kWidth, kHeight, kFont),
    '<rect width="100%" height="100%" fill="#ffffff"/>',
    ('<text x="%d" y="32" font-size="18" font-weight="600" fill="%s">%s</text>'):format(kLeft, kInk,
      escape(title)),
  }
  axes(out, x, y, low, high, last)
  return out, x, y
end

--- Draws the training losses of several runs over each other, the first widest, so that those below
--- are seen.
---@param title string
---@param runs { name: string, step: integer[], loss: number[] }[]
---@return string svg
function M.overlay(title, runs)
  local out, x, y = canvas(title, runs)
  local entries = {}
  for i, run in ipairs(runs) do
    local color = kRuns[(i - 1) % #kRuns + 1]
    line(out, x, y, run.step, run.loss, color, math.max(1, 2 * (#runs - i) + 1), 0.8)
    entries[i] = { color = color, text = run.name }
  end
  legend(out, entries)
  out[#out + 1] = '</svg>\n'
  return table.concat(out, '\n')
end

--- Draws the losses of a run.
---@param options { title: string, train: { step: integer[], loss: number[] },
---  val?: { step: integer[], loss: number[] } }
---@return string svg
function M.losses(options)
  local train, val = options.train, options.val or { step = {}, loss = {} }
  local out, x, y = canvas(options.title, { train, val })
  local entries = {}
  if #train.loss > 0 then
    local losses, many = train.loss, #train.loss >= 50
    if many then
      line(out, x, y, train.step, losses, kTrain, 1, 0.3)
      losses = smooth(losses, math.ceil(#losses / 60))
    end
    line(out, x, y, train.step, losses, kTrain, 2.2, 1)
    if #losses == 1 then dots(out, x, y, train, kTrain, 3.5) end
    entries[1] = { color = kTrain, text = ('training %.3f'):format(losses[#losses]) }
  end
  if #val.loss > 0 then
    line(out, x, y, val.step, val.loss, kVal, 2, 1)
    if #val.loss <= 60 then dots(out, x, y, val, kVal, 4) end
    entries[#entries + 1] = { color = kVal, text = ('validation %.3f'):format(val.loss[#val.loss]) }
  end
  legend(out, entries)
  out[#out + 1] = '</svg>\n'
  return table.concat(out, '\n')
end

return M
