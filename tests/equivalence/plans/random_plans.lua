--- Random legal plans: partitions in several steps, stages, schedules, numbers of micro-batches and
--- recompute drawn from a seed; a plan that fails is shrunk. Of a hundred plans the first 40 aim at
--- ways of cutting operators that those before did not have, so that all occur. Prints what was
--- covered.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local handle = require 'nnscaler.policies.handle'
local models = require 'tests.equivalence.plans.models'
local random_policy = require 'tests.equivalence.plans.random_policy'
local runner = require 'tests.equivalence.plans.runner'
local sorted_keys = require('nnscaler.sorted').sorted_keys
local trace = require 'nnscaler.trace'

local draw = random_policy.draw

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

-- Into how many parts a form cuts first.
local function parts_of(form) return form[2] / form[3] end

-- What the models can be cut into, { model, parts, nodes = { { id, ways } } } with ways as { way,
-- input, dim }; and all names of ways.
local function cases_of_models()
  local cases, ways, seen = {}, {}, {}
  for _, name in ipairs(models.list) do
    if models[name].group == 'main' then
      local sample = models[name].sample(T.generator(11), 1)
      local graph = trace(models.new(name), { sample }, { training = true })
      for _, parts in ipairs { 2, 3, 4 } do
        local g = handle.new(graph, { plan_ngpus = parts, runtime_ngpus = parts })
        local case = { model = name, parts = parts, nodes = {} }
        for i, node in ipairs(g:nodes()) do
          case.nodes[i] = { id = node.id, ways = {} }
          for _, place in ipairs(g:choices(node)) do
            place.uneven = true
            if not g:refusal(node, place, parts) then
              local way = random_policy.way(node, place)
              table.insert(case.nodes[i].ways, { way = way, input = place.input, dim = place.dim })
              if not seen[way] then seen[way], ways[#ways + 1] = true, way end
            end
          end
        end
        cases[#cases + 1] = case
      end
    end
  end
  table.sort(ways)
  return cases, ways
end

-- Of the ways that are still open those that one plan of the case can have: each operator is cut in
-- one way. Returns the aims and the ways.
local function aims_of(case, open)
  local aims, taken = {}, {}
  for _, node in ipairs(case.nodes) do
    for _, w in ipairs(node.ways) do
      if open[w.way] and not taken[w.way] then
        taken[w.way] = true
        aims[#aims + 1] = { id = node.id, input = w.input, dim = w.dim }
        break
      end
    end
  end
  return aims, taken
end

local cover

-- Plans that have all ways of cutting between them, each as many new ones as it can.
local function covering()
  if cover then return cover end
  local cases, ways = cases_of_models()
  local open, left = {}, #ways
  for _, way in ipairs(ways) do open[way] = true end
  cover = { ways = ways }
  while left > 0 do
    local best, best_taken, best_case = {}, nil, nil
    for _, case in ipairs(cases) do
      local aims, taken = aims_of(case, open)
      if #aims > #best then best, best_taken, best_case = aims, taken, case end
    end
    for _, way in ipairs(sorted_keys(best_taken)) do open[way] = nil end
    left = left - #best
    cover[#cover + 1] = { model = best_case.model, parts = best_case.parts, aims = best }
  end
  return cover
end

-- A form that cuts into so many parts first.
local function form_of(parts, seed)
  local fitting = {}
  for _, form in ipairs(forms) do
    if parts_of(form) == parts then fitting[#fitting + 1] = form end
  end
  return fitting[draw(#fitting, seed, 11) + 1]
end

---@param seed integer
---@return table cell
function M.cell(seed)
  local aims, model, form = nil, drawn_models[draw(#drawn_models, seed, 14) + 1],
    forms[draw(#forms, seed, 11) + 1]
  if seed % 100 <= 40 then
    local list = covering()
    local plan = list[seed % 100 % #list + 1]
    aims, model, form = plan.aims, plan.model, form_of(plan.parts, seed)
  end
  local units = form[1] / form[2]
  local micro = units * (1 + draw(3, seed, 12)) - draw(units, seed, 13)
  return {
    name = 'seed ' .. seed, model = model,
    policy = 'tests.equivalence.plans.random_policy', ranks = form[1], plan = form[2],
    micro = micro,
    config = {
      seed = seed, stages = form[3], schedule = schedules[draw(#schedules, seed, 15) + 1],
      recompute = draw(2, seed, 16) == 1, aims = aims,
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
---@return table cell, string|nil problem nil where it passes when it runs again
function M.shrink(cell)
  local best, reason = cell, problem(cell)
  if not reason then return cell, nil end
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

--- What is wrong with a plan that has run, and the smallest that still fails; nil if nothing is.
---@param cell table
---@return string|nil
function M.report(cell)
  local found = runner.problem(cell)
  if not found then return nil end
  local small, reason = M.shrink(cell)
  return ('%s fails: %s\nshrunk to %s'):format(cell.name, reason or found, base.json_encode {
    model = small.model, plan = small.plan, ranks = small.ranks, micro = small.micro,
    config = small.config })
end

--- What plans covered.
---@param cells table[] that have run
---@return { replicated: number, calls: table<string, integer>, splits: table, missing: string[],
---  text: string }
function M.coverage(cells)
  local c = { calls = {}, pairs = {}, splits = {}, missing = {} }
  local nodes, cut = 0, 0
  for _, cell in ipairs(cells) do
    for r, result in ipairs(cell.results or {}) do
      for _, what in ipairs { 'calls', 'pairs' } do
        for kind, n in pairs(result[what]) do c[what][kind] = (c[what][kind] or 0) + n end
      end
      if r == 1 and cell.plan > cell.config.stages then
        nodes, cut = nodes + result.drawn.nodes, cut + result.drawn.cut
        for _, split in ipairs(result.drawn.splits) do c.splits[split] = true end
      end
    end
  end
  c.replicated = 1 - cut / math.max(1, nodes)
  local lines = {
    ('%d plans, %d operators, %.0f %% of them replicated'):format(#cells, nodes,
      c.replicated * 100),
    '',
  }
  for _, what in ipairs { 'calls', 'pairs' } do
    for _, kind in ipairs(sorted_keys(c[what])) do
      lines[#lines + 1] = ('  %-28s %6d'):format(kind, c[what][kind])
    end
  end
  local missing, ways = c.missing, covering().ways
  for _, way in ipairs(ways) do
    if not c.splits[way] then missing[#missing + 1] = way end
  end
  lines[2] = ('ways of cutting an operator: %d of %d (%d plans can have them all)'):format(
    #ways - #missing, #ways, #covering())
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
