--- What each rank of the plan matrix runs: the reference on one device, the program under the plan,
--- and the comparison of this rank's parts.
local Eager = require 'nnscaler.runtime.eager'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler.runtime.comm'
local models = require 'tests.equivalence.plans.models'

-- ‖a − b‖ / ‖b‖, or ‖a − b‖ where b is zero.
local function distance(a, b)
  if b:numel() == 0 then return 0 end
  local scale = b:norm():item()
  return (a - b):norm():item() / (scale > 0 and scale or 1)
end

-- The part of a whole tensor that a leaf of the program describes.
local function part(whole, leaf)
  if not leaf.start then return whole end
  for d, start in ipairs(leaf.start) do whole = whole:narrow(d - 1, start, leaf.shape[d]) end
  return whole
end

-- Bytes that this rank should have sent in a step by its program, and for loss and weight.
local function expected_bytes(program, world, forwards, backwards)
  local function control(numbers) return 2 * (world - 1) * math.ceil(numbers / world) * 8 end
  local bytes = control(2) + (program.sharing.lockstep and control(1) or 0)
  for _, entry in ipairs(program.traffic) do
    local kind = entry.segment:match '^%a+'
    local times = kind == 'forward' and forwards or (kind == 'step' and 1 or backwards)
    bytes = bytes + entry.bytes * times
  end
  return bytes
end

-- Compares the loss over all micro-batches in evaluation mode.
local function evaluate(eager, program, all, mine, note)
  local function sum(engine, samples, first, step)
    local total, weight = 0, 0
    for i, sample in ipairs(samples) do
      local loss, n = engine:eval_step(sample, { step = 4, micro = first + (i - 1) * step })
      if n > 0 then total, weight = total + n * loss, weight + n end
    end
    return { total, weight }
  end
  local shared = program.sharing
  local want = sum(eager, all, 0, 1)
  local got = shared:collect(sum(program, mine, shared.unit, shared.units))
  note(math.abs(got[1] / got[2] - want[1] / want[2]) / math.abs(want[1] / want[2]), 'evaluation')
end

return function(argument)
  local case = base.json_decode(argument)
  require('nnscaler.log').set_level 'warning'
  local job = {
    seed = 5, pas_policy = case.policy, pas_config = case.pas_config,
    micro_batches = math.ceil(case.micro_batches / (case.world / case.plan)),
    compute_config = { plan_ngpus = case.plan, runtime_ngpus = case.world },
  }
  local generator, all = T.generator(11), {}
  for k = 1, case.micro_batches do all[k] = models[case.model].sample(generator, k) end

  local eager = Eager.new(models.new(case.model), { seed = 5 })
  local want = eager:train_step(all, { step = 3, seed = 5 })

  local program = Program.new(models.new(case.model), job)
  program:prepare(all[1])
  local units, mine = case.world / case.plan, {}
  local unit = math.floor(program.sharing.rank / case.plan)
  for k = unit + 1, case.micro_batches, units do mine[#mine + 1] = all[k] end
  local before = comm.bytes_sent()
  local got = program:train_step(mine, { step = 3, seed = 5 })
  local sent = comm.bytes_sent() - before

  local worst, where, cut, whole_bytes, local_bytes = 0, 'nothing', 0, 0, 0
  local function note(d, what)
    if d > worst or d ~= d then worst, where = d, what end
  end
  note(math.abs(got.loss - want.loss) / math.max(1e-30, math.abs(want.loss)), 'loss')
  note(math.abs(got.weight - want.weight), 'weight')
  if case.evaluate then evaluate(eager, program, all, mine, note) end
  local total = 0
  for _, p in ipairs(eager.parameters) do
    local g = eager:grad(p.name)
    if g then total = total + g:norm():item() ^ 2 end
  end
  local by_name = {}
  for _, p in ipairs(eager.parameters) do by_name[p.name] = p end
  for i, leaf in ipairs(program.shares) do
    local name = leaf.name
    local reference = by_name[name]
    local own = program.parameters[i]
    assert(own.name == name)
    local weight = reference.data.kind == 'parameter' and reference.data.data or reference.data
    whole_bytes = whole_bytes + weight:numel()
    local_bytes = local_bytes + program.parameters[i].data:numel()
    if leaf.start then cut = cut + 1 end
    assert(program.parameters[i].data:detach():equal(part(weight:detach(), leaf)),
      name .. ': initial weights differ')
    local a, b = program:grad(name), eager:grad(name)
    assert((a == nil) == (b == nil), name .. ': only one has a gradient')
    if b then
      -- A gradient that is zero by structure is rounding noise on both sides.
      local noise = b:norm():item() <= 1e-10 * math.sqrt(total)
      if noise then
        assert(a:norm():item() <= 1e-10 * math.sqrt(total), name .. ' is not zero')
      else
        note(distance(a, part(b, leaf)), name)
      end
    end
  end
  for i, buffer in ipairs(program.buffers) do
    local leaf = program.sharing.parts[buffer.name]
    assert(eager.buffers[i].name == buffer.name)
    if buffer.data:is_floating_point() then
      note(distance(buffer.data, part(eager.buffers[i].data, leaf)), buffer.name)
    else
      assert(buffer.data:equal(eager.buffers[i].data), buffer.name)
    end
  end
  -- A rank whose micro-batch counts for nothing skips its backward, unless others wait.
  local shared = program.sharing
  local rounds = shared.lockstep and math.ceil(case.micro_batches / units) or #mine
  local backwards = rounds
  if not (shared.lockstep or shared.stages.count > 1) then
    for k = unit + 1, case.micro_batches, units do
      if models[case.model].masked == k then backwards = backwards - 1 end
    end
  end
  return base.json_encode {
    sent = sent, expected = expected_bytes(program, case.world, rounds, backwards),
    traffic = program.traffic, buffers = #program.buffers,
    lengths = models[case.model].lengths or false,
    worst = worst, where = where, cut = cut, whole = whole_bytes, own = local_bytes,
    plan = program.sharing.plan:text(),
  }
end
