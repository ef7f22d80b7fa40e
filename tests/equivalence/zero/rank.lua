--- Cells of the ZeRO tests on one rank: five steps with AdamW, clipping and dropout in float64,
--- beside the same on one device; and the bytes that this rank keeps.
local Eager = require 'nnscaler.runtime.eager'
local GPT = require 'nnscaler.models.gpt'
local Llama = require 'nnscaler.models.llama'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler.runtime.groups'
local fingerprint = require('nnscaler._C.train').fingerprint
local optim = require 'nnscaler.optim'
local slots = require 'nnscaler.optim.slots'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local store = require 'nnscaler.runtime.store'
local trial = require 'nnscaler.verify.trial'

local SEED, STEPS = 5, 5

local gpt = { vocab = 16, layers = 2, heads = 4, width = 8, block = 8, bias = true, dropout = 0.1 }
local models = {
  tied = { make = function() return GPT(gpt) end, blocks = 'transformer.h.?' },
  untied = { make = function()
    local arguments = { tied = false }
    for key, value in sorted_pairs(gpt) do arguments[key] = value end
    return GPT(arguments)
  end, blocks = 'transformer.h.?' },
  llama = { make = function()
    return Llama { vocab = 16, layers = 2, heads = 4, kv_heads = 2, width = 8, hidden = 12,
      block = 8 }
  end, blocks = 'model.layers.?' },
}

local function model_of(cell)
  local made = models[cell.model or 'tied'].make()
  made:to 'float64'
  for _, entry in ipairs(made:named_parameters()) do
    entry.param.init = { kind = 'normal', mean = 0, std = 0.5 }
  end
  return made
end

local function optimizer_of(cell)
  local adamw = { lr = 0.02, weight_decay = 0.1 }
  if not cell.muon then return { type = 'adamw', args = adamw } end
  adamw.type, adamw.match = 'adamw', { '*wte*', '*wpe*', '*bias', '*ln*', '*c_attn*' }
  return { type = 'muon', args = { lr = 0.02, ns_dtype = 'float64', groups = { adamw } } }
end

local function how_of(cell)
  return { optimizer = optimizer_of(cell), clip_gnorm = 0.5, seed = SEED, first_step = 3 }
end

-- Samples of each step, of all units: with masks some labels are ignored, in one micro-batch all.
local function samples_of(cell, count)
  local g, steps = T.generator(11), {}
  local function integers(high)
    return T.randint(0, high, { 2, 8 }, { generator = g, dtype = 'int64' })
  end
  for s = 1, STEPS do
    steps[s] = {}
    for k = 1, count do
      local x, y, drop = integers(16), integers(16), integers(4)
      if cell.masked then
        y = y:masked_fill(drop:eq(0), -100)
        if k == 2 then y:slice(0, 1, 2):fill_(-100) end
        if k == count and count > 2 then y:fill_(-100) end
      end
      steps[s][k] = { x = x, y = y }
    end
  end
  return steps
end

local references = {}

local function reference(cell, count)
  local key = ('%d %s %s %s'):format(count, tostring(cell.masked), tostring(cell.muon),
    tostring(cell.model))
  if not references[key] then
    references[key] = trial.run(Eager.new(model_of(cell), { seed = SEED }), samples_of(cell, count),
      how_of(cell))
  end
  return references[key]
end

-- Elements that this rank keeps of weights and gradients, and of slots of the optimizer.
local function kept(program)
  local memory = program.first:memory((program.first:schedule()))
  local out = { weights = 0, gradients = 0, slots = 0,
    predicted = { weights = memory.parameters / 8, gradients = memory.gradients / 8 } }
  for _, leaf in ipairs(program.parameters) do
    local gradient = program:grad(leaf.name)
    out.weights = out.weights + leaf.data:numel()
    out.gradients = out.gradients + (gradient and gradient:numel() or 0)
  end
  for _, slot in sorted_pairs(program.states.slots) do
    for _, data in sorted_pairs(slot.tensors) do out.slots = out.slots + data:numel() end
  end
  return out
end

-- Counts the bytes that gathers of a program's step send.
local function count_gathers(program)
  local sent, gather = { 0 }, program.states.gather
  program.states.gather = function(...)
    local before = comm.bytes_sent()
    gather(...)
    sent[1] = sent[1] + comm.bytes_sent() - before
  end
  return sent
end

-- What they should send in a step.
local function gathered_bytes(program)
  local bytes = 0
  for _, t in ipairs(program.traffic) do
    if t.segment == 'step' and t.op == 'all_gather' then bytes = bytes + t.bytes end
  end
  return bytes
end

local function run(cell)
  local units = cell.ranks / cell.plan
  local count = cell.count or cell.accumulation * units
  local program = Program.new(model_of(cell), {
    seed = SEED, pas_policy = 'tests.equivalence.zero.policy',
    pas_config = { base = cell.policy, config = cell.config, zero = cell.levels,
      recompute = cell.recompute and models[cell.model or 'tied'].blocks },
    micro_batches = math.ceil(count / units), optimizer = optimizer_of(cell),
    compute_config = { plan_ngpus = cell.plan, runtime_ngpus = cell.ranks, use_zero = cell.zero,
      zero_ngroups = cell.groups, zero_use_reduce_scatter = cell.scatter,
      reducer_bucket_cap_mb = cell.bucket, zero_offload = cell.offload },
  })
  local all, mine = samples_of(cell, count), {}
  program:prepare(all[1][1])
  local shared = program.sharing
  for s, samples in ipairs(all) do
    mine[s] = {}
    for k = shared.unit + 1, count, units do table.insert(mine[s], samples[k]) end
  end
  slots.check_parts(optim.new(optimizer_of(cell), program:optimized()), program:slices())
  local sent = count_gathers(program)
  local got = trial.run(program, mine, how_of(cell))
  local bad = {}
  for _, row in ipairs(trial.compare(got, reference(cell, count),
    function(name, x) return shared:part(name, x) end)) do
    local fits = row.difference <= trial.limit(row) -- NaN does not
    if not fits then
      bad[#bad + 1] = ('%s %s: %.3g'):format(row.what, row.name, row.difference)
    end
  end
  -- Ranks that hold the same part of a weight hold the same bits.
  local bits = {}
  for _, leaf in ipairs(program.shares) do
    bits[leaf.name .. store.key(store.slice_of(leaf))] = fingerprint(got.weights[leaf.name])
  end
  return { sent = sent[1], expected = STEPS * gathered_bytes(program), bits = bits, bad = bad,
    kept = kept(program), plan = shared.plan:text():match '[^\n]*' }
end

return function(argument)
  require('nnscaler.log').set_level 'error'
  local results = {}
  for i, cell in ipairs(base.json_decode(argument)) do
    local ok, made = pcall(run, cell)
    if not ok then error(('%s: %s'):format(cell.name, tostring(made)), 0) end
    results[i] = made
  end
  return base.json_encode(results)
end
