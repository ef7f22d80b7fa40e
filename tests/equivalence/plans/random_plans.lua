--- Random legal plans: partitions in several steps, stages, schedules, numbers of micro-batches and
--- recompute drawn from a seed; a plan that fails is shrunk. Prints what the plans covered.
local draw = require('tests.equivalence.plans.random_policy').draw
local models = require 'tests.equivalence.plans.models'
local runner = require 'tests.equivalence.plans.runner'
local sorted_keys = require('nnscaler.sorted').sorted_keys

local M = {}

-- Models with few operators are drawn less often.
local drawn_models = {}
for _, name in ipairs(models.list) do
  if models[name].group == 'main' and name ~= 'one operator' and name ~= 'no parameters' then
    drawn_models[#drawn_models + 1] = name
  end
end
for _, name in ipairs { 'gpt tied', 'gpt untied', 'gpt dropout', 'llama', 'cnn' } do
  drawn_models[#drawn_models + 1] = name
end

-- ranks, plan_ngpus, stages
local forms = { { 2, 2, 1 }, { 4, 4, 1 }, { 4, 4, 1 }, { 4, 2, 1 }, { 3, 3, 1 }, { 4, 4, 2 },
  { 4, 4, 2 }, { 2, 2, 2 }, { 8, 4, 2 }, { 4, 4, 4 } }
local schedules = { '1f1b', 'gpipe' }

---@param seed integer
---@return table cell
function M.cell(seed)
  local form = forms[draw(#forms, seed, 11) + 1]
  local units = form[1] / form[2]
  local micro = units * (1 + draw(3, seed, 12)) - draw(units, seed, 13)
  return {
    name = 'seed ' .. seed, model = drawn_models[draw(#drawn_models, seed, 14) + 1],
    policy = 'tests.equivalence.plans.random_policy', ranks = form[1], plan = form[2],
    micro = micro,
    config = {
      seed = seed, stages = form[3], schedule = schedules[draw(#schedules, seed, 15) + 1],
      recompute = draw(2, seed, 16) == 1,
    },
  }
end

local function problem(cell)
  cell.error, cell.results = nil, nil
  runner.run_all { cell }
  return runner.problem(cell)
end

-- A copy of the cell with another config or other fields.
local function with(cell, fields, config)
  local copy = { config = {} }
  for _, key in ipairs { 'name', 'model', 'policy', 'ranks', 'plan', 'micro' } do
    copy[key] = cell[key]
  end
  for _, key in ipairs(sorted_keys(cell.config)) do copy.config[key] = cell.config[key] end
  for _, key in ipairs(sorted_keys(fields)) do copy[key] = fields[key] end
  for _, key in ipairs(sorted_keys(config)) do copy.config[key] = config[key] end
  return copy
end

--- A smaller plan that still fails: fewer micro-batches, no recompute, fewer operators cut.
---@param cell table one that fails
---@return table cell, string problem
function M.shrink(cell)
  local best, reason = cell, problem(cell)
  local function try(candidate)
    local found = problem(candidate)
    if found then best, reason = candidate, found end
    return found ~= nil
  end
  try(with(best, {}, { recompute = false }))
  try(with(best, { micro = best.ranks / best.plan }, {}))
  local kept = {}
  for id = 0, 127 do kept[#kept + 1] = id end
  local size = #kept / 2
  while size >= 1 do
    local at = 1
    while at <= #kept do
      local fewer = {}
      for i, id in ipairs(kept) do
        if i < at or i >= at + size then fewer[#fewer + 1] = id end
      end
      if #fewer < #kept and try(with(best, {}, { keep = fewer })) then
        kept = fewer
      else
        at = at + size
      end
    end
    size = math.floor(size / 2)
  end
  return best, reason
end

local function count(t) return #sorted_keys(t) end

--- What plans covered.
---@param cells table[] that have run
---@return { replicated: number, calls: table<string, integer>, splits: table, choices: table,
---  text: string }
function M.coverage(cells)
  local c = { calls = {}, splits = {}, choices = {} }
  local nodes, cut = 0, 0
  for _, cell in ipairs(cells) do
    for r, result in ipairs(cell.results or {}) do
      for kind, n in pairs(result.calls) do c.calls[kind] = (c.calls[kind] or 0) + n end
      if r == 1 and cell.plan > cell.config.stages then
        nodes, cut = nodes + result.drawn.nodes, cut + result.drawn.cut
        for _, split in ipairs(result.drawn.splits) do c.splits[split] = true end
        for _, choice in ipairs(result.drawn.choices) do c.choices[choice] = true end
      end
    end
  end
  c.replicated = 1 - cut / math.max(1, nodes)
  local lines = {
    ('%d plans, %d operators, %.0f %% of them replicated'):format(#cells, nodes,
      c.replicated * 100),
    ('ways of cutting an operator: %d of %d'):format(count(c.splits), count(c.choices)),
  }
  for _, kind in ipairs(sorted_keys(c.calls)) do
    lines[#lines + 1] = ('  %-24s %6d'):format(kind, c.calls[kind])
  end
  local missing = {}
  for _, choice in ipairs(sorted_keys(c.choices)) do
    if not c.splits[choice] then missing[#missing + 1] = choice end
  end
  c.missing = missing
  if #missing > 0 then lines[#lines + 1] = 'never cut: ' .. table.concat(missing, '; ') end
  c.text = table.concat(lines, '\n')
  return c
end

--- Runs so many plans from a first seed; those with equally many ranks share sessions.
---@param first integer
---@param number integer
---@return table[] cells
function M.run(first, number)
  local cells, sessions, open = {}, {}, {}
  for i = 1, number do
    local cell = M.cell(first + i - 1)
    local session = open[cell.ranks]
    if not session or #session >= 20 then
      session = {}
      sessions[#sessions + 1], open[cell.ranks] = session, session
    end
    cells[i], session[#session + 1] = cell, cell
  end
  for _, session in ipairs(sessions) do runner.run_all(session) end
  return cells
end

return M
