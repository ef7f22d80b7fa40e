--- Runs of one GPT in a precision: on one device, or under a plan on a rank; and how far what they
--- make is from the float64 reference.
local Eager = require 'nnscaler.runtime.eager'
local GPT = require 'nnscaler.models.gpt'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local precision = require 'nnscaler.precision'
local trial = require 'nnscaler.verify.trial'

local M = {}

local SEED, STEPS, COUNT = 5, 3, 4
-- With a smaller eps, the step of a weight whose gradient is about 0 is all rounding error.
local how = { optimizer = { type = 'adamw', args = { lr = 0.01, eps = 1e-3 } }, clip_gnorm = 1,
  seed = SEED }

M.precisions = { 'fp64', 'fp32', 'bf16', 'bf16-mixed', 'fp16', '16-mixed' }
M.plans = {
  { name = 'dp 2', policy = 'dp', plan = 1 }, { name = 'tp 2', policy = 'tp', plan = 2 },
  { name = 'pp 2', policy = 'pp', plan = 2 }, { name = 'fsdp 2', policy = 'fsdp', plan = 1 },
  { name = 'megatron 2', policy = 'megatron', plan = 2 },
}

-- Rounding errors of one operation: a run cannot be asked for less.
local rounding = { float64 = 1e-11, float32 = 1e-7, bfloat16 = 2 ^ -8, float16 = 2 ^ -11 }

local function model_of(name)
  local model = GPT { vocab = 16, layers = 2, heads = 2, width = 16, block = 8, bias = true,
    dropout = 0.1 }
  for _, entry in ipairs(model:named_parameters()) do
    local norm = entry.name:find 'ln_' and entry.name:find 'weight'
    entry.param.init = { kind = 'normal', mean = norm and 1 or 0, std = 0.3 }
  end
  precision.apply(model, precision.of(name))
  return model
end

local function samples()
  local g, steps = T.generator(11), {}
  local function integers()
    return T.randint(0, 16, { 2, 8 }, { generator = g, dtype = 'int64' })
  end
  for s = 1, STEPS do
    steps[s] = {}
    for k = 1, COUNT do steps[s][k] = { x = integers(), y = integers() } end
  end
  return steps
end

local function reference()
  return trial.run(Eager.new(model_of 'fp64', { seed = SEED }), samples(), how)
end

local function rows(got, part)
  local list = {}
  for _, row in ipairs(trial.compare(got, M.reference, part)) do
    list[row.what .. ' ' .. row.name] = { difference = row.difference, zero = row.zero }
  end
  return list
end

local function setup() M.reference = M.reference or reference() end

--- Errors of one device.
---@param name string precision
---@return table<string, { difference: number, zero?: boolean }>
function M.alone(name)
  setup()
  local engine = Program.new(model_of(name), { seed = SEED, pas_policy = 'dp' })
  return rows(trial.run(engine, samples(), how), function(_, x) return x end)
end

--- Errors of this rank under a plan.
---@param cell { precision: string, policy: string, plan: integer }
---@return { rows: table<string, { difference: number, zero?: boolean }>, own: integer } own:
---  elements of weights on this rank
function M.rank(cell)
  setup()
  local units = 2 / cell.plan
  local engine = Program.new(model_of(cell.precision), {
    seed = SEED, pas_policy = cell.policy, micro_batches = COUNT / units,
    compute_config = { plan_ngpus = cell.plan, runtime_ngpus = 2 },
  })
  local all, mine = samples(), {}
  engine:prepare(all[1][1])
  local shared = engine.sharing
  for s, list in ipairs(all) do
    mine[s] = {}
    for k = shared.unit + 1, COUNT, units do table.insert(mine[s], list[k]) end
  end
  local errors = rows(trial.run(engine, mine, how), function(name, x)
    return shared:part(name, x)
  end)
  local own = 0
  for _, parameter in ipairs(engine.parameters) do own = own + parameter.data:numel() end
  return { rows = errors, own = own }
end

--- The largest error allowed: ten times that of one device; in float64 that of design 3.9.
---@param name string precision
---@param row { difference: number, zero?: boolean } of one device
---@param what string
---@return number
function M.limit(name, row, what)
  local of = precision.of(name)
  local dtype = of.autocast or of.parameter
  if row.zero then return what:find '^weight' and 1 or 10 * rounding[dtype] end
  if dtype == 'float64' then return rounding.float64 end
  return 10 * math.max(rounding[dtype], row.difference)
end

return M
