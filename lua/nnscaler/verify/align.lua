--- Which calls of a program's text are which calls of the Program that it was written from, though
--- somebody has edited the text since.
local M = {}

-- A text of a call that is equal for equal calls: the operator, and where it stands in the model.
local function token(op, place) return op .. ' ' .. place end

local comment = '%-%- (%S+:%d+)'

-- Where the call at a line of a program stands in the model, by the comment beside or above it.
local function place(lines, line)
  local own = (lines[line] or ''):match(comment)
  if own then return own end
  for k = line - 1, math.max(line - 4, 1), -1 do
    local above = lines[k]:match(comment)
    if above then return lines[k]:match '^%s*%-%-' and above or '' end
  end
  return ''
end

--- Where calls of a program's text stand in the model.
---@param text string
---@return string[] places by line of the text: 'gpt.lua:30'; '' where no comment says it
function M.places(text)
  local lines, places = {}, {}
  for line in (text .. '\n'):gmatch '(.-)\n' do lines[#lines + 1] = line end
  for i in ipairs(lines) do places[i] = place(lines, i) end
  return places
end

-- Numbers of equal tokens of two lists in order, as many as there are: by the longest common
-- subsequence of what lies between their common beginning and end.
local function common(a, b)
  local pairs_of, first = {}, 0
  while first < math.min(#a, #b) and a[first + 1] == b[first + 1] do
    first = first + 1
    pairs_of[first] = first
  end
  local last_a, last_b = #a, #b
  while last_a > first and last_b > first and a[last_a] == b[last_b] do
    pairs_of[last_a] = last_b
    last_a, last_b = last_a - 1, last_b - 1
  end
  local n, m = last_a - first, last_b - first
  local length = {} -- of the subsequence of what follows, by row and column
  for i = n, 0, -1 do
    length[i] = {}
    for j = m, 0, -1 do
      if i == n or j == m then
        length[i][j] = 0
      elseif a[first + i + 1] == b[first + j + 1] then
        length[i][j] = length[i + 1][j + 1] + 1
      else
        length[i][j] = math.max(length[i + 1][j], length[i][j + 1])
      end
    end
  end
  local i, j = 0, 0
  while i < n and j < m do
    if a[first + i + 1] == b[first + j + 1] then
      pairs_of[first + i + 1] = first + j + 1
      i, j = i + 1, j + 1
    elseif length[i + 1][j] >= length[i][j + 1] then
      i = i + 1
    else
      j = j + 1
    end
  end
  return pairs_of
end

--- Finds the calls of a Program among those that ran. Those without a partner of the same operator
--- at the same place take one of the same operator at the same distance from a pair.
---@param calls { op: string, place: string }[] of the Program's segment
---@param ran nnscaler.WatchedCall[]
---@param places string[] of the text that ran
---@return table<integer, nnscaler.WatchedCall> by number of the Program's call
function M.calls(calls, ran, places)
  local want, got, found = {}, {}, {}
  for i, call in ipairs(calls) do want[i] = token(call.op, call.place) end
  for i, call in ipairs(ran) do got[i] = token(call.op, places[call.line] or '') end
  local taken, partner = {}, common(want, got)
  for _, j in next, partner do taken[j] = true end
  for i = 1, #calls do
    local before = i == 1 and 0 or partner[i - 1]
    if not partner[i] and before and ran[before + 1] and not taken[before + 1]
      and ran[before + 1].op == calls[i].op then
      partner[i], taken[before + 1] = before + 1, true
    end
    found[i] = partner[i] and ran[partner[i]]
  end
  return found
end

return M
