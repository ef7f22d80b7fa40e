--- How often the programs of a cell communicate, exactly: what calls.txt says of it, and for the
--- plans whose communication has a closed form, that form. NNSCALER_UPDATE=1 writes calls.txt anew.
---
---   gpt tied | dp 2 | S all_reduce 1
---
--- Per micro-batch by segment (F, B, W; F1 … of a rank's next stage), S once per step; where ranks
--- differ each is told.
local base = require 'nnscaler._C.base'
local models = require 'tests.equivalence.plans.models'

local M = {}

local PATH = 'tests/equivalence/plans/calls.txt'

local letters = { forward = 'F', backward = 'B', weight = 'W', step = 'S' }

-- Calls of one rank.
local function text_of(traffic)
  local order, counts = {}, {}
  for _, entry in ipairs(traffic) do
    local name, number = entry.segment:match '^(%a+)(%d*)$'
    local key = ('%s%s %s'):format(letters[name], number, entry.op)
    if not counts[key] then order[#order + 1], counts[key] = key, 0 end
    counts[key] = counts[key] + entry.calls
  end
  for i, key in ipairs(order) do order[i] = ('%s %d'):format(key, counts[key]) end
  return order[1] and table.concat(order, ', ') or 'none'
end

--- Calls of all ranks of a cell that has run.
---@param results table[] of cell.lua
---@return string
function M.text(results)
  local order, ranks = {}, {}
  for r, result in ipairs(results) do
    local text = text_of(result.traffic)
    if not ranks[text] then order[#order + 1], ranks[text] = text, {} end
    table.insert(ranks[text], r - 1)
  end
  if #order == 1 then return order[1] end
  for i, text in ipairs(order) do
    order[i] = ('%s: %s'):format(table.concat(ranks[text], ','), text)
  end
  return table.concat(order, '; ')
end

local known

-- Calls by 'model | plan'.
local function load()
  if known then return known end
  known = {}
  for line in base.file_read(PATH):gmatch '[^\n]+' do
    local key, text = line:match '^(.- | .-) | (.*)$'
    known[key] = text
  end
  return known
end

---@return string|nil
function M.of(cell) return load()[cell.model .. ' | ' .. cell.name] end

--- Writes the calls of all cells that have run in float64.
---@param list string[] models
---@param cells table<string, table[]>
function M.write(list, cells)
  local lines = {}
  for _, model in ipairs(list) do
    for _, cell in ipairs(cells[model]) do
      if cell.dtype == 'float64' and cell.results then
        lines[#lines + 1] = ('%s | %s | %s\n'):format(model, cell.name, M.text(cell.results))
      end
    end
  end
  base.file_write(PATH, table.concat(lines))
end

local function sum(result, segment, op)
  local n = 0
  for _, entry in ipairs(result.traffic) do
    if entry.segment:find('^' .. segment) and (not op or entry.op == op) then
      n = n + entry.calls
    end
  end
  return n
end

local function expect(fine, what, ...)
  if not fine then error(what:format(...), 0) end
end

-- By form: what holds of each rank's result.
local forms = {}

function forms.none(result) expect(#result.traffic == 0, 'one device communicates') end

-- Gradients of all parameters in one sum a step; nothing in a micro-batch.
function forms.dp(result)
  local calls = result.trained > 0 and 1 or 0
  expect(sum(result, 'step') == calls and #result.traffic == calls, 'expected %d sum(s) a step',
    calls)
end

-- Of each weight that forward reads a gather, of each gradient a scatter; a second gather of those
-- that backward reads.
function forms.fsdp(result)
  local scatters, gathers = sum(result, 'backward', 'reduce_scatter'),
    sum(result, 'forward', 'all_gather')
  expect(scatters == result.trained, '%d scatters of %d gradients', scatters, result.trained)
  expect(gathers >= scatters, '%d gathers of weights for %d gradients', gathers, scatters)
  expect(sum(result, 'backward', 'all_gather') <= gathers, 'backward gathers more than forward')
end

-- Activations one way, as many gradients the other way at most.
function forms.pp(_, results)
  local forward, backward = 0, 0
  for _, result in ipairs(results) do
    forward = forward + sum(result, 'forward', 'send')
    backward = backward + sum(result, 'backward', 'send')
  end
  expect(backward <= forward, '%d gradients for %d activations', backward, forward)
end

--- Raises unless a cell that has run communicates as expected.
---@param cell table
function M.check(cell)
  if forms[cell.form] and models[cell.model].group == 'main' then
    for _, result in ipairs(cell.results) do forms[cell.form](result, cell.results) end
  end
  if os.getenv 'NNSCALER_UPDATE' then return end
  local said, is = M.of(cell), M.text(cell.results)
  expect(said == is, '%s says %s; the programs have %s\nNNSCALER_UPDATE=1 writes it anew', PATH,
    said or 'nothing', is)
end

return M
