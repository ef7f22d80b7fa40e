--- Steps of mixed precision on one rank: gradients of four micro-batches in one step, for which
--- weights are cast once, beside those of four steps of one each without an update in between; and
--- how often weights are cast.
local GPT = require 'nnscaler.models.gpt'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local fingerprint = require('nnscaler._C.train').fingerprint
local precision = require 'nnscaler.precision'
local profile = require 'nnscaler.runtime.profile'
local tree = require 'nnscaler.runtime.tree'

local SEED, COUNT = 5, 4

local function samples(seed, count)
  local g, list = T.generator(seed), {}
  local function integers()
    return T.randint(0, 16, { 2, 8 }, { generator = g, dtype = 'int64' })
  end
  for k = 1, count do list[k] = { x = integers(), y = integers() } end
  return list
end

local function engine_of(cell, count)
  local model = GPT { vocab = 16, layers = 2, heads = 2, width = 16, block = 8, bias = true }
  for _, entry in ipairs(model:named_parameters()) do
    entry.param.init = { kind = 'normal', mean = 0, std = 0.3 }
  end
  precision.apply(model, precision.of(cell.precision))
  local engine = Program.new(model, {
    seed = SEED, pas_policy = cell.policy, micro_batches = count, precision = cell.precision,
    pas_config = cell.recompute and { recompute_modules = 'transformer.h.?' } or nil,
    compute_config = { plan_ngpus = cell.plan, runtime_ngpus = cell.ranks, use_zero = cell.zero },
  })
  engine:prepare(samples(1, 1)[1])
  return engine
end

local function gradients_of(engine)
  local bits = {}
  for _, parameter in ipairs(engine.parameters) do
    local gradient = engine:grad(parameter.name)
    bits[parameter.name] = gradient and fingerprint(gradient) or 'none'
  end
  return bits
end

-- Casts in a step, as they run; those in front of a segment's calls are of its activations, and of
-- gradients.
local function count_casts(engine, list)
  profile.events, profile.open = {}, true
  engine:train_step(list, { step = 0 })
  profile.open = false
  local n = 0
  for _, event in ipairs(profile.events) do n = n + (event.name == 'to.dtype' and 1 or 0) end
  return n
end

local function expected_casts(engine, count)
  local n = #engine.first:casts()
  for _, segment in ipairs(engine.first:segments()) do
    for _, call in ipairs(engine.first:calls(segment.name)) do
      n = n + (call.op == 'aten::to.dtype' and count or 0)
    end
  end
  return n
end

-- Casts of weights that the text still has in segments.
local function left(engine)
  local n = 0
  for _, text in next, engine.texts do
    local rest = text:gsub('local function casts.-\nend\n', '')
    for operand in rest:gmatch 'aten%.to_dtype%(([%w_.%[%]]+),' do
      n = n + ((operand:find '^[pw]%.' or operand:find '^[pw]%[') and 1 or 0)
    end
  end
  return n
end

local function run(cell)
  local joint, apart = engine_of(cell, COUNT), engine_of(cell, COUNT)
  local list = samples(7 + joint.sharing.unit, COUNT)
  local made = joint:train_step(list, { step = 0 })
  local losses = {}
  for k, sample in ipairs(list) do
    losses[k] = apart:train_step({ sample }, { step = 0, unsummed = k < COUNT }).losses[1]
  end
  local out = { joint = gradients_of(joint), apart = gradients_of(apart), losses = made.losses,
    losses_apart = losses, casts = #joint.first:casts(), left = left(joint), kept = 0 }
  for _, name in ipairs(joint.first:casts()) do
    local parent, key = tree.place(joint.tensors, name)
    out.kept = out.kept + (parent[key] and 1 or 0)
  end
  joint:zero_grad()
  out.ran, out.expected = count_casts(joint, list), expected_casts(joint, COUNT)
  -- Weights that others change between steps.
  for _, engine in ipairs { joint, apart } do
    engine:zero_grad()
    for _, parameter in ipairs(engine.parameters) do
      T.no_grad(function() parameter.data:mul_(0.5) end)
    end
  end
  joint:train_step(list, { step = 0 })
  for k, sample in ipairs(list) do
    apart:train_step({ sample }, { step = 0, unsummed = k < COUNT })
  end
  out.later, out.later_apart = gradients_of(joint), gradients_of(apart)
  return out
end

return function(argument)
  require('nnscaler.log').set_level 'error'
  profile.enable()
  local results = {}
  for i, cell in ipairs(base.json_decode(argument)) do
    local ok, made = pcall(run, cell)
    if not ok then error(('%s: %s'):format(cell.name, tostring(made)), 0) end
    results[i] = made
  end
  return base.json_encode(results)
end
