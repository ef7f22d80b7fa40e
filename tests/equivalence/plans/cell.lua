--- A cell of the plan matrix on one rank: the program under its plan, compared with the reference
--- on one device, which is computed once a model.
local Eager = require 'nnscaler.runtime.eager'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local models = require 'tests.equivalence.plans.models'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local sample_of = require 'nnscaler.runtime.sample'
local traffic = require 'nnscaler.verify.traffic'
local trial = require 'nnscaler.verify.trial'

local SEED, STEPS = 5, 2
local how = { optimizer = { type = 'sgd', args = { lr = 0.05 } }, seed = SEED, first_step = 3 }

-- Samples of each step, of all units.
local function samples_of(cell, dtype)
  local generator, steps = T.generator(11), {}
  for s = 1, STEPS do
    steps[s] = {}
    for k = 1, cell.micro do
      steps[s][k] = sample_of.map(models[cell.model].sample(generator, k), function(x)
        return x:is_floating_point() and x:to(dtype) or x
      end)
    end
  end
  return steps
end

local references = {}

local function reference(cell, dtype)
  local key = ('%s %d %s'):format(cell.model, cell.micro, dtype)
  if not references[key] then
    local engine = Eager.new(models.new(cell.model, dtype), { seed = SEED })
    references[key] = trial.run(engine, samples_of(cell, dtype), how)
  end
  return references[key]
end

local function run_plan(cell, dtype)
  local steps, mine = samples_of(cell, dtype), {}
  local program = Program.new(models.new(cell.model, dtype), {
    seed = SEED, pas_policy = cell.policy, pas_config = cell.config or {},
    compute_config = { plan_ngpus = cell.plan, runtime_ngpus = cell.ranks },
  })
  program:prepare(steps[1][1])
  local shared = program.sharing
  for s, all in ipairs(steps) do
    mine[s] = {}
    for k = (shared and shared.unit or 0) + 1, cell.micro, shared and shared.units or 1 do
      table.insert(mine[s], all[k])
    end
  end
  return program, trial.run(program, mine, how)
end

local function whole(_, x) return x end

-- Rows with their limits. In float32 the error against the float64 reference may be ten times that
-- of the float32 run on one device.
local function measured(cell, got, part)
  local rows = trial.compare(got, reference(cell, 'float64'), part)
  if cell.dtype ~= 'float32' then
    for _, row in ipairs(rows) do row.limit = trial.limit(row) end
    return rows
  end
  local own = {}
  local wide = reference(cell, 'float64')
  for _, row in ipairs(trial.compare(reference(cell, 'float32'), wide, whole)) do
    own[row.what .. row.name] = row.difference
  end
  for _, row in ipairs(rows) do
    row.limit = row.zero and (row.what == 'weight' and 1 or 1e-6)
      or 10 * math.max(1e-7, own[row.what .. row.name])
  end
  return rows
end

local M = {}

--- Runs a cell: { model, policy, plan = plan_ngpus, ranks, micro, config = pas_config, dtype }.
---@param cell table
---@return { worst: number, where: string, bad: string[], zero: string[], own: integer,
---  whole: integer, traffic: table, plan: string }
function M.run(cell)
  local program, got = run_plan(cell, cell.dtype or 'float64')
  local shared = program.sharing
  local rows = measured(cell, got, shared and function(name, x) return shared:part(name, x) end
    or whole)
  local result = { worst = 0, where = 'nothing', bad = {}, zero = {}, own = 0, whole = 0 }
  for _, row in ipairs(rows) do
    local what = row.what .. ' ' .. row.name
    if row.zero and row.what == 'gradient' then table.insert(result.zero, row.name) end
    if not row.zero and row.difference > result.worst then
      result.worst, result.where = row.difference, what
    end
    local fits = row.difference <= row.limit -- NaN does not
    if not fits then
      table.insert(result.bad, ('%s: %.3g > %.3g'):format(what, row.difference, row.limit))
    end
  end
  for _, x in sorted_pairs(got.initial) do result.own = result.own + x:numel() end
  for _, x in sorted_pairs(reference(cell, 'float64').initial) do
    result.whole = result.whole + x:numel()
  end
  local first = samples_of(cell, cell.dtype or 'float64')[1][1]
  result.traffic = traffic.of(program:compile(first, true))
  result.plan = shared and shared.plan:text() or ''
  if cell.policy == 'tests.equivalence.plans.random_policy' then
    local drawn = require(cell.policy)
    local sorted_keys = require('nnscaler.sorted').sorted_keys
    result.drawn = { nodes = #drawn.nodes, cut = #sorted_keys(drawn.cut),
      splits = sorted_keys(drawn.splits), choices = sorted_keys(drawn.choices) }
  end
  return result
end

return M
