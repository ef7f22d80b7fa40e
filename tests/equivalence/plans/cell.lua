--- A cell of the plan matrix on one rank: the program under its plan, compared with the reference
--- on one device, which is computed once a model.
local Eager = require 'nnscaler.runtime.eager'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local beside = require 'tests.equivalence.support.beside'
local comm = require 'nnscaler.runtime.groups'
local fingerprint = require('nnscaler._C.train').fingerprint
local lines_of = require 'tests.equivalence.support.lines'
local models = require 'tests.equivalence.plans.models'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local sample_of = require 'nnscaler.runtime.sample'
local traffic = require 'nnscaler.runtime.traffic'
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

-- Loss and weight over micro-batches in evaluation mode.
local function evaluate(engine, samples, first, step)
  local total, weight = 0, 0
  for i, sample in ipairs(samples) do
    local loss, n = engine:eval_step(sample, { step = 4, micro = first + (i - 1) * step })
    if n > 0 then total, weight = total + n * loss, weight + n end
  end
  return { total, weight }
end

local references = {}

local function reference(cell, dtype)
  local key = ('%s %d %s %s'):format(cell.model, cell.micro, dtype, cell.evaluate and 'too' or '')
  if not references[key] then
    local engine = Eager.new(models.new(cell.model, dtype), { seed = SEED })
    local steps = samples_of(cell, dtype)
    references[key] = trial.run(engine, steps, how)
    if cell.evaluate then references[key].evaluation = evaluate(engine, steps[1], 0, 1) end
  end
  return references[key]
end

-- The engine, noting what each step sends.
local function counted(program)
  local sent = {}
  return setmetatable({
    train_step = function(_, samples, context)
      local before = comm.bytes_sent()
      local result = program:train_step(samples, context)
      sent[#sent + 1] = comm.bytes_sent() - before
      return result
    end,
  }, { __index = program }), sent
end

-- What a rank should send in the first step by its program, and for loss and weight.
local function expected_bytes(cell, program, micro_batches)
  local shared = program.sharing
  local forwards = shared.lockstep and math.ceil(cell.micro / shared.units) or micro_batches
  local backwards = forwards
  -- A micro-batch that counts for nothing has no backward, unless others wait for it.
  local masked = models[cell.model].masked
  if masked and masked <= cell.micro and not shared.lockstep and shared.stages.count == 1
    and (masked - 1) % shared.units == shared.unit then
    backwards = backwards - 1
  end
  return traffic.bytes(program.traffic, forwards, backwards)
    + beside(cell.ranks, shared.rank, shared.lockstep)
end

local function run_plan(cell, dtype)
  local steps, mine = samples_of(cell, dtype), {}
  local program = Program.new(models.new(cell.model, dtype), {
    seed = SEED, pas_policy = cell.policy, pas_config = cell.config or {},
    micro_batches = math.ceil(cell.micro / (cell.ranks / cell.plan)),
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
  local engine, sent = counted(program)
  local got = trial.run(engine, mine, how)
  if shared then
    got.sent, got.expected = sent[1], expected_bytes(cell, program, #mine[1])
    if cell.evaluate then
      got.evaluation = shared:over_all(evaluate(program, mine[1], shared.unit, shared.units))
    end
  end
  return program, got
end

-- A hash of all that a rank has computed, to the last bit.
local function bits_of(got)
  local parts = {}
  for _, step in ipairs(got.steps) do
    parts[#parts + 1] = ('%a %a %a'):format(step.loss, step.weight, step.gnorm)
  end
  for _, field in ipairs { 'initial', 'gradients', 'weights', 'buffers' } do
    for name, x in sorted_pairs(got[field]) do parts[#parts + 1] = name .. fingerprint(x) end
  end
  return base.hash(table.concat(parts, ' '))
end

local function whole(_, x) return x end

-- Rows with their limits. In float32 the error against the float64 reference may be ten times that
-- of the float32 run on one device.
local function measured(cell, got, part)
  local want = reference(cell, 'float64')
  local rows = trial.compare(got, want, part)
  if got.evaluation then
    local a, b = got.evaluation[1] / got.evaluation[2], want.evaluation[1] / want.evaluation[2]
    table.insert(rows, { what = 'evaluation', name = 'loss', difference = math.abs(a / b - 1) })
  end
  if cell.dtype ~= 'float32' then
    for _, row in ipairs(rows) do row.limit = trial.limit(row) end
    return rows
  end
  local own = {}
  for _, row in ipairs(trial.compare(reference(cell, 'float32'), want, whole)) do
    own[row.what .. row.name] = row.difference
  end
  for _, row in ipairs(rows) do
    row.limit = row.zero and (row.what == 'weight' and 1 or 1e-6)
      or 10 * math.max(1e-7, own[row.what .. row.name])
  end
  return rows
end

local M = {}

--- Runs a cell: { model, policy, plan = plan_ngpus, ranks, micro, config = pas_config, dtype,
--- evaluate = whether to compare the loss in evaluation mode, bits = whether to hash what was
--- computed }.
---@param cell table
---@return { worst: number, where: string, bad: string[], zero: string[], own: integer,
---  whole: integer, cut: integer, traffic: nnscaler.Traffic[], calls: table<string, integer>,
---  pairs: table<string, integer>, sent: integer|nil, expected: integer|nil, buffers: integer,
---  trained: integer, plan: string, bits: string|nil, lines: integer }
---  cut: parameters of which the rank holds a part; trained: those that get a gradient; pairs:
---  calls that communicate, with those of their gradients; sent: bytes of the first step; lines: of
---  the program under a plan
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
  result.cut, result.trained, result.buffers = 0, 0, #program.buffers
  for _, leaf in ipairs(program.shares or {}) do
    if leaf.start then result.cut = result.cut + 1 end
    if leaf.addends > 0 then result.trained = result.trained + 1 end
  end
  result.traffic = program.traffic or {}
  result.calls = traffic.of(result.traffic).calls
  result.pairs = shared and select(3, program.first:adapters()) or {}
  result.sent, result.expected = got.sent, got.expected
  result.bits = cell.bits and bits_of(got)
  result.lines = program.first and lines_of(program.first:lua()) or 0
  result.plan = shared and shared.plan:text() or ''
  -- The policy has run on rank 0.
  if cell.policy == 'tests.equivalence.plans.random_policy' and shared.rank == 0 then
    local drawn = require(cell.policy)
    local sorted_keys = require('nnscaler.sorted').sorted_keys
    result.drawn = { nodes = #drawn.nodes, cut = #sorted_keys(drawn.cut),
      splits = sorted_keys(drawn.splits) }
  end
  return result
end

return M
