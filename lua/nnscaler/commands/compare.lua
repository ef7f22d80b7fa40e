--- What `nnscaler plan` says of hardware: what a step of the plan costs, how the plans that people
--- write by hand compare, and, of autodist, which number of devices a plan is best. All of them see
--- the same samples a step and are priced by one simulator.
local autodist = require 'nnscaler.policies.autodist'
local batches = require 'nnscaler.trainer.batches'
local fail = require 'nnscaler.fail'
local options = require 'nnscaler.options'
local pipeline = require 'nnscaler.pipeline'
local policies = require 'nnscaler.policies'
local solve = require 'nnscaler._C.solve'
local sorted = require 'nnscaler.sorted'
local units = require 'nnscaler.units'

local M = {}

---@class nnscaler.Compared
---@field name string of the policy, with what is not its default
---@field policy string|function
---@field config table pas_config
---@field zero integer|nil as compute_config.use_zero; nil: what the job says
---@field own boolean whether it is the plan that was asked for
---@field width integer devices of the plan
---@field line nnscaler.Pipeline|nil with the plan
---@field cost nnscaler.StepCost|nil
---@field micro_batches integer of a unit, a step
---@field why string|nil why there is no such plan

local function divisors(n)
  local list = {}
  for p = 1, n do
    if n % p == 0 then list[#list + 1] = p end
  end
  return list
end

local function with(chosen, changes) return options.new(sorted.with(chosen, changes)) end

-- Makes and prices a plan; a plan that the model or the hardware refuses says why.
local function attempt(row, source, chosen, graph, samples, job)
  local per_unit = samples * row.width / chosen.runtime_ngpus / job.micro_batch_size
  if per_unit % 1 ~= 0 or per_unit < 1 then
    row.why = ('%d samples are no whole micro-batches of %d for %d units'):format(samples,
      job.micro_batch_size, chosen.runtime_ngpus / row.width)
    return row
  end
  row.micro_batches = per_unit
  local line = pipeline.new(source, with(chosen, { policy = row.policy, plan_ngpus = row.width,
    pas_config = row.config, micro_batches = per_unit, whole = false,
    zero = row.zero and options.zero { use_zero = row.zero } or chosen.zero }))
  local ok, err = pcall(function()
    line:use_plan(graph, line:ask_policy(graph))
    row.cost = line:simulate(graph, line.plan, autodist.settings(graph, line:policy_config(graph)))
    row.line = line
  end)
  if ok then return row end
  if type(err) ~= 'table' or err.kind ~= 'plan' then error(err, 0) end
  row.error, row.why = err, err.message
  return row
end

--- Plans that people write by hand, for so many ranks.
---@param world integer
---@return { policy: string, width: integer, config: table, zero?: integer }[]
function M.hand(world)
  local list = { { policy = 'dp', width = 1, config = {} } }
  if world == 1 then return list end
  list[2] = { policy = 'fsdp', width = 1, config = {} }
  for _, width in ipairs(divisors(world)) do
    if width > 1 then
      list[#list + 1] = { policy = 'pp', width = width, config = {} }
      list[#list + 1] = { policy = 'megatron', width = width, config = {} }
      list[#list + 1] = { policy = 'megatron', width = width,
        config = { sequence_parallel = true } }
    end
  end
  return list
end

-- What is compared: the plan that was asked for, then those of other policies.
local function candidates(job, chosen, hand)
  local rows, known, world = {}, {}, chosen.runtime_ngpus
  local function add(policy, width, config, own, zero)
    local name = type(policy) == 'string' and policy or 'function'
    for key, value in sorted.sorted_pairs(config) do
      if not own then name = ('%s %s=%s'):format(name, key, tostring(value)) end
    end
    if zero then name = ('%s use_zero=%d'):format(name, zero) end
    local key = ('%s %d'):format(name, width)
    if known[key] then return end
    known[key] = true
    rows[#rows + 1] = { name = name, policy = policy, width = width, config = config, zero = zero,
      own = own or false }
  end
  local given = job.compute_config and job.compute_config.plan_ngpus
  local config = chosen.pas_config or {}
  if chosen.policy == 'autodist' and not given then
    for _, width in ipairs(divisors(world)) do add('autodist', width, config, true) end
  else
    add(chosen.policy, chosen.plan_ngpus, config, true)
  end
  for _, plan in ipairs(hand or M.hand(world)) do
    add(plan.policy, plan.width, plan.config, false, plan.zero)
  end
  return rows
end

-- The fastest of rows that fit in so many bytes.
local function fastest(rows, memory, own)
  local best
  for _, row in ipairs(rows) do
    local fits = row.cost and row.cost.total <= memory and (own == nil or row.own == own)
    if fits and (not best or row.cost.seconds < best.cost.seconds) then best = row end
  end
  return best
end

-- The plan that a run takes which says no number of devices.
local function fewest(rows, memory)
  local best
  for _, row in ipairs(rows) do
    local fits = row.own and row.cost and row.cost.total <= memory
    if fits and (not best or row.width < best.width) then best = row end
  end
  return best
end

--- Compares plans for the graph of a job.
---@param job nnscaler.Job
---@param source nnscaler.Source
---@param chosen nnscaler.Options
---@param graph userdata
---@param hand? table[] plans of other policies, as `hand` gives them
---@return { rows: nnscaler.Compared[], best: nnscaler.Compared, hand: nnscaler.Compared|nil,
---  fewest: nnscaler.Compared|nil, hardware: nnscaler.Hardware, samples: integer, memory: number,
---  ranks: integer }
function M.plans(job, source, chosen, graph, hand)
  local hardware = chosen.hardware
    or chosen.policy == 'autodist' and (chosen.pas_config or {}).hardware or 'cpu'
  local on = solve.hardware(hardware)
  if chosen.runtime_ngpus > on.devices_per_host
    and chosen.runtime_ngpus % on.devices_per_host ~= 0 then
    fail('usage', 'plan.hardware', ('%d ranks on hosts of %d devices; expected whole hosts'):format(
      chosen.runtime_ngpus, on.devices_per_host), 'choose another --world, or another number of '
      .. 'devices a host: --hardware h100x4')
  end
  policies.check(chosen.policy, chosen.pas_config)
  -- A profile is of programs for the device of the job.
  local device = on.origin == 'measured' and chosen.device or on.name == 'cpu' and 'cpu' or 'cuda'
  chosen = with(chosen, { hardware = hardware, device = device })
  local memory = autodist.memory { hardware = hardware,
    pas_config = chosen.policy == 'autodist' and chosen.pas_config or nil }
  local rows, samples = candidates(job, chosen, hand), batches.samples(job, chosen.runtime_ngpus)
  for _, row in ipairs(rows) do attempt(row, source, chosen, graph, samples, job) end
  local best = fastest(rows, memory, true)
  if not best then  -- the one that was asked for is shown though it does not fit
    for _, row in ipairs(rows) do
      if row.own and row.cost and not best then best = row end
    end
  end
  if not best then
    local first = rows[1]
    if first.error then error(first.error, 0) end
    fail('plan', 'plan.hardware', first.why)
  end
  return { rows = rows, best = best, hand = fastest(rows, memory, false), hardware = on,
    samples = samples, memory = memory, ranks = chosen.runtime_ngpus,
    fewest = options.is_open(job) and fewest(rows, memory) or nil }
end

local function seconds(s) return s < 1 and ('%.3f ms'):format(s * 1e3) or ('%.4f s'):format(s) end

-- What takes most of a step. Pipeline ranks share what a micro-batch takes, and wait the rest.
local function binding(row, memory)
  local cost, info = row.cost, row.line.plan:info()
  local ranks = #info.stages / info.chunks
  local micro = row.micro_batches / ranks
  local parts = {
    { 'work on the devices', micro * (cost.forward + cost.backward - cost.communication) },
    { 'communication inside the plan', micro * cost.communication },
    { 'sums of gradients', cost.sums }, { 'updates of weights', cost.update },
  }
  if ranks > 1 then
    local waits = cost.seconds
    for _, part in ipairs(parts) do waits = waits - part[2] end
    parts[#parts + 1] = { 'waiting in the pipeline', math.max(0, waits) }
  end
  table.sort(parts, function(a, b)
    if a[2] ~= b[2] then return a[2] > b[2] end
    return a[1] < b[1]
  end)
  local text = {}
  for i, part in ipairs(parts) do
    text[i] = ('%s %.1f %%'):format(part[1], 100 * part[2] / cost.seconds)
  end
  return ('time: %s; memory: %.1f %% of %s'):format(table.concat(text, ', '),
    100 * cost.total / memory, units.bytes(memory))
end

-- Where a plan spends more than the best one, most first.
local function dearer(row, best)
  local function parts(of)
    local cost, micro = of.cost, of.micro_batches
    local ranks = #of.line.plan:info().stages / of.line.plan:info().chunks
    local list = { calls = micro * (cost.forward + cost.backward - cost.communication) / ranks,
      ['communication inside'] = micro * cost.communication / ranks,
      ['sums of gradients'] = cost.sums, ['updates of weights'] = cost.update }
    list['waiting in the pipeline'] = cost.seconds - list.calls - list['communication inside']
      - cost.sums - cost.update
    return list
  end
  local mine, theirs, rows, text = parts(row), parts(best), {}, {}
  for name, value in sorted.sorted_pairs(mine) do
    rows[#rows + 1] = { name = name, more = value - theirs[name] }
  end
  table.sort(rows, function(a, b)
    if a.more ~= b.more then return a.more > b.more end
    return a.name < b.name
  end)
  for _, part in ipairs(rows) do
    if part.more > 1e-3 * best.cost.seconds and #text < 2 then
      text[#text + 1] = ('%s %s more'):format(part.name, seconds(part.more))
    end
  end
  return #text > 0 and table.concat(text, ', ') or 'by little everywhere'
end

-- Whether a plan is the best one under another name.
local function same(row, best)
  return row.width == best.width and row.cost.total == best.cost.total
    and math.abs(row.cost.seconds / best.cost.seconds - 1) < 1e-9
end

--- The three fastest other plans, with what each costs and why it was not taken.
---@param found table what `plans` gave
---@return string[]
function M.rejected(found)
  local rows, best, out = {}, found.best, {}
  for _, row in ipairs(found.rows) do
    if row ~= best and row.cost and not same(row, best) then rows[#rows + 1] = row end
  end
  table.sort(rows, function(a, b) return a.cost.seconds < b.cost.seconds end)
  for i = 1, math.min(3, #rows) do
    local row = rows[i]
    local over = row.cost.total > found.memory
    out[i] = ('%s on %d device(s): %s a step (%+.1f %%), %s a device: %s'):format(row.name,
      row.width, seconds(row.cost.seconds), 100 * (row.cost.seconds / best.cost.seconds - 1),
      units.bytes(row.cost.total), over and ('the memory binds, %s is %s too little'):format(
        units.bytes(found.memory), units.bytes(row.cost.total - found.memory))
        or row.cost.seconds < best.cost.seconds and 'it is faster, and not what was asked for'
        or 'the time binds, ' .. dearer(row, best))
  end
  return out
end

--- The comparison as text.
---@param found table what `plans` gave
---@return string
function M.text(found)
  local out = {}
  local function add(text, ...) out[#out + 1] = text:format(...) end
  add('hardware %s, %d devices a host, figures %s; %d ranks, %d samples a step, %s a device',
    found.hardware.name, found.hardware.devices_per_host, found.hardware.origin, found.ranks,
    found.samples, units.bytes(found.memory))
  add('  %-38s %7s %5s %6s %12s %12s %12s %10s %10s', 'plan', 'devices', 'units', 'micro', 'step',
    'in calls', 'in links', 'sums', 'memory')
  for _, row in ipairs(found.rows) do
    local mark = row == found.best and '*' or ' '
    if row.cost then
      local cost, micro = row.cost, row.micro_batches
      add('%s %-38s %7d %5d %6d %12s %12s %12s %10s %10s%s', mark, row.name, row.width,
        found.ranks / row.width, micro, seconds(cost.seconds),
        seconds(micro * (cost.forward + cost.backward - cost.communication)),
        seconds(micro * cost.communication), seconds(cost.sums), units.bytes(cost.total),
        cost.total > found.memory and '  does not fit' or '')
    else
      add('%s %-38s %7d %5d   %s', mark, row.name, row.width, found.ranks / row.width,
        (row.why:match '^[^\n]*'))
    end
  end
  local best, hand = found.best, found.hand
  add('best: %s on %d device(s), %s a step: %s', best.name, best.width,
    seconds(best.cost.seconds), binding(best, found.memory))
  if hand then
    add('best of the others that fit: %s on %d device(s), %s a step (%+.1f %%)', hand.name,
      hand.width, seconds(hand.cost.seconds),
      100 * (hand.cost.seconds / best.cost.seconds - 1))
  else
    add 'none of the others fits'
  end
  local few = found.fewest
  if few and few ~= best then
    add('a run takes the fewest devices that fit, %d, unless it is given this plan (--plan-out) or '
      .. 'compute_config.plan_ngpus=%d (%+.1f %%)', few.width, best.width,
      100 * (best.cost.seconds / few.cost.seconds - 1))
  end
  for _, text in ipairs(M.rejected(found)) do add('rejected: %s', text) end
  add 'calls and communication follow one another in these figures: nothing overlaps'
  return table.concat(out, '\n')
end

return M
