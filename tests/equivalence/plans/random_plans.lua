--- Random legal plans: partitions in several steps, stages, schedules, numbers of micro-batches and
--- recompute drawn from a seed; a plan that fails is shrunk. Three of four plans aim at a way of
--- cutting an operator, each at the next one, so that all occur. Prints what the plans covered.
local T = require 'nnscaler.tensor'
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

local ways

-- The ways of cutting of all models: { way, models = { name, parts = { [n] = true } } }.
local function all_ways()
  if ways then return ways end
  ways = {}
  local by_name = {}
  for _, name in ipairs(models.list) do
    if models[name].group == 'main' then
      local sample = models[name].sample(T.generator(11), 1)
      local graph = trace(models.new(name), { sample }, { training = true })
      for _, parts in ipairs { 2, 3, 4 } do
        local g = handle.new(graph, { plan_ngpus = parts, runtime_ngpus = parts })
        for _, node in ipairs(g:nodes()) do
          for _, place in ipairs(g:choices(node)) do
            place.uneven = true
            local way = random_policy.way(node, place)
            if not g:refusal(node, place, parts) then
              if not by_name[way] then
                by_name[way] = { way = way, cases = {}, seen = {} }
                ways[#ways + 1] = by_name[way]
              end
              local case = name .. ' ' .. parts
              if not by_name[way].seen[case] then
                by_name[way].seen[case] = true
                table.insert(by_name[way].cases, { model = name, parts = parts })
              end
            end
          end
        end
      end
    end
  end
  table.sort(ways, function(a, b) return a.way < b.way end)
  return ways
end

-- What a plan aims at: a way, a model that has it and a form that can cut it so.
local function aim_of(seed)
  local list = all_ways()
  local aim = list[seed % #list + 1]
  local case = aim.cases[draw(#aim.cases, seed, 17) + 1]
  local fitting = {}
  for _, form in ipairs(forms) do
    if parts_of(form) == case.parts then fitting[#fitting + 1] = form end
  end
  return aim.way, case.model, fitting[draw(#fitting, seed, 11) + 1]
end

---@param seed integer
---@return table cell
function M.cell(seed)
  local aim, model, form = nil, drawn_models[draw(#drawn_models, seed, 14) + 1],
    forms[draw(#forms, seed, 11) + 1]
  if seed % 4 > 0 then aim, model, form = aim_of(seed - math.floor(seed / 4)) end
  local units = form[1] / form[2]
  local micro = units * (1 + draw(3, seed, 12)) - draw(units, seed, 13)
  return {
    name = 'seed ' .. seed, model = model,
    policy = 'tests.equivalence.plans.random_policy', ranks = form[1], plan = form[2],
    micro = micro,
    config = {
      seed = seed, stages = form[3], schedule = schedules[draw(#schedules, seed, 15) + 1],
      recompute = draw(2, seed, 16) == 1, aim = aim,
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

--- What plans covered.
---@param cells table[] that have run
---@return { replicated: number, calls: table<string, integer>, splits: table, missing: string[],
---  text: string }
function M.coverage(cells)
  local c = { calls = {}, splits = {}, missing = {} }
  local nodes, cut = 0, 0
  for _, cell in ipairs(cells) do
    for r, result in ipairs(cell.results or {}) do
      for kind, n in pairs(result.calls) do c.calls[kind] = (c.calls[kind] or 0) + n end
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
  for _, kind in ipairs(sorted_keys(c.calls)) do
    lines[#lines + 1] = ('  %-24s %6d'):format(kind, c.calls[kind])
  end
  local missing = c.missing
  for _, aim in ipairs(all_ways()) do
    if not c.splits[aim.way] then missing[#missing + 1] = aim.way end
  end
  lines[2] = ('ways of cutting an operator: %d of %d'):format(#ways - #missing, #ways)
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
