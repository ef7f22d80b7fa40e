--- The matrix as a table: for the eye (worst difference a cell) and for docs/equivalence.md (which
--- cells there are, and the share of the weights that the fullest rank holds).
local base = require 'nnscaler._C.base'

local M = {}

local function find(cells, plan, dtype)
  for _, cell in ipairs(cells) do
    if cell.name == plan.name and cell.dtype == dtype then return cell end
  end
end

-- Worst difference over ranks and largest share of weights, or nil where the cell has not run.
local function measured(cell)
  if not cell or not cell.results then return nil end
  local worst, share = 0, 0
  for _, result in ipairs(cell.results) do
    worst = math.max(worst, result.worst)
    if result.whole > 0 then share = math.max(share, result.own / result.whole) end
  end
  return worst, share
end

--- Worst difference of each cell in float64, one line a model.
---@return string
function M.text(models, plans, cells)
  local lines = { 'worst relative difference (float64); columns:' }
  for i, plan in ipairs(plans) do
    lines[#lines + 1] = ('  %2d %s'):format(i, plan.name)
  end
  for _, model in ipairs(models) do
    local line = { ('%-42s'):format(model:sub(1, 42)) }
    for _, plan in ipairs(plans) do
      local worst = measured(find(cells[model], plan, 'float64'))
      line[#line + 1] = ('%7s'):format(worst and ('%.0e'):format(worst) or '-')
    end
    lines[#lines + 1] = table.concat(line, ' ')
  end
  return table.concat(lines, '\n')
end

local BEGIN, END = '<!-- begin matrix -->\n', '<!-- end matrix -->\n'

local function heading(plans)
  local names, rules = { 'model' }, { '---' }
  for _, plan in ipairs(plans) do
    names[#names + 1], rules[#rules + 1] = plan.name, ':-:'
  end
  return ('| %s |\n| %s |\n'):format(table.concat(names, ' | '), table.concat(rules, ' | '))
end

--- Writes the table between the marks of a page.
---@param path string
function M.write(path, models, plans, cells)
  local lines = { heading(plans) }
  for _, model in ipairs(models) do
    local line = { model }
    for _, plan in ipairs(plans) do
      local cell = find(cells[model], plan, 'float64')
      local _, share = measured(cell)
      local text = cell and (cell.passed and (share and ('%d %%'):format(share * 100 + 0.5)
        or 'refused') or 'FAILS') or ''
      local narrow = find(cells[model], plan, 'float32')
      line[#line + 1] = text .. (narrow and narrow.passed and ' ³²' or '')
    end
    lines[#lines + 1] = '| ' .. table.concat(line, ' | ') .. ' |\n'
  end
  local page = base.file_read(path)
  local first, last = page:find(BEGIN, 1, true), page:find(END, 1, true)
  assert(first and last, path .. ' has no marks for the matrix')
  base.file_write(path, page:sub(1, first + #BEGIN - 1) .. table.concat(lines) .. page:sub(last))
end

--- Raises unless the page has these models and plans.
function M.check(path, models, plans)
  local page = base.file_read(path)
  local hint = path .. ' shows another matrix; NNSCALER_UPDATE=1 writes it anew'
  assert(page:find(heading(plans), 1, true), hint)
  for _, model in ipairs(models) do assert(page:find('\n| ' .. model .. ' |', 1, true), hint) end
end

return M
