--- What each rank runs: models under plans, trained and then evaluated, against one device without
--- tracing.
local Eager = require 'nnscaler.runtime.eager'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local trial = require 'nnscaler.verify.trial'
local trials = require 'tests.equivalence.graphs.trials'

local how = trials.how

-- Tensors of nested results, in order, as float64.
local function flat(value, out)
  if T.is_tensor(value) then
    out[#out + 1] = value:detach():to 'float64'
  elseif type(value) == 'table' then
    for _, item in sorted_pairs(value) do flat(item, out) end
  end
  return out
end

local references = {}

-- Of one device: trained weights, and what forward returns in evaluation, by micro-batch.
local function reference(model, micro)
  local key = model.name .. micro
  if not references[key] then
    local module, steps = model.make(), trials.samples(model, micro)
    local want = trial.run(Eager.new(module, { seed = how.seed }), steps, how)
    module:eval()
    want.results = {}
    T.no_grad(function()
      for k, sample in ipairs(steps[1]) do want.results[k] = flat({ module(sample) }, {}) end
    end)
    references[key] = want
  end
  return references[key]
end

local function apart(a, b)
  local scale = b:norm():item()
  return (a - b):norm():item() / (scale > 0 and scale or 1)
end

-- What is wrong with the results of evaluation, put into `bad`.
local function check_results(program, steps, want, bad)
  local shared = program.sharing
  local told = 0
  for k = shared.unit + 1, #steps[1], shared.units do
    local got = flat({ program:infer(steps[1][k], { step = trials.steps, micro = k - 1 }) }, {})
    if #got > 0 then
      told = told + 1
      if #got ~= #want.results[k] then
        bad[#bad + 1] = ('evaluation %d: %d tensors, not %d'):format(k, #got, #want.results[k])
      end
      for i, x in ipairs(want.results[k]) do
        local same = got[i] and table.concat(got[i].shape, ' ') == table.concat(x.shape, ' ')
        local d = same and apart(got[i], x) or math.huge
        local fits = d <= trials.limit -- NaN does not
        if not fits then
          bad[#bad + 1] = ('evaluation %d, tensor %d: %g'):format(k, i, d)
        end
      end
    end
  end
  return told
end

local function run(cell)
  local model = require(cell.models)[cell.model]
  local steps, mine = trials.samples(model, cell.micro), {}
  local compute = cell.compute or {}
  compute.plan_ngpus, compute.runtime_ngpus = cell.plan, cell.ranks
  local program = Program.new(model.make(), {
    seed = how.seed, pas_policy = cell.policy, pas_config = cell.config or {},
    micro_batches = math.ceil(cell.micro / (cell.ranks / cell.plan)),
    compute_config = compute,
  })
  program:prepare(steps[1][1])
  local shared = program.sharing
  for s, all in ipairs(steps) do
    mine[s] = {}
    for k = shared.unit + 1, cell.micro, shared.units do table.insert(mine[s], all[k]) end
  end
  local got, want, bad = trial.run(program, mine, how), reference(model, cell.micro), {}
  local rows = trial.compare(got, want, function(name, x) return shared:part(name, x) end)
  for _, row in ipairs(rows) do
    local fits = row.difference <= trial.limit(row) -- NaN does not
    if not fits then
      bad[#bad + 1] = ('%s %s: %g'):format(row.what, row.name, row.difference)
    end
  end
  local told = check_results(program, steps, want, bad)
  return { bad = bad, told = told, programs = program.training.count }
end

---@param argument string JSON list of cells { models, model, policy, plan, ranks, micro, config }
---@return string JSON list of { bad = what is wrong, told = evaluated micro-batches that this rank
---  tells, programs = training programs in use }
return function(argument)
  require('nnscaler.log').set_level 'error'
  local results = {}
  for i, cell in ipairs(base.json_decode(argument)) do results[i] = run(cell) end
  return base.json_encode(results)
end
