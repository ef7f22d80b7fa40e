--- rannc: the three levels of RaNNC (Tanaka et al., IPDPS 2021). Atoms are operators that depend on
--- the sample, in program order, each with the parameter-derived ones before it; neighbours are
--- merged to blocks of about equal time; blocks become stages with replicas of their own
--- (rannc_stages.lua), whose devices share the rows of a micro-batch. The micro-batches are those
--- of the job. Of the plans for each number of stages the one that the simulator finds fastest is
--- taken; with `rannc_costs` RaNNC's own formulas and estimate decide.
local autodist = require 'nnscaler.policies.autodist'
local core = require 'nnscaler._C.lower'
local fail = require 'nnscaler.fail'
local handle = require 'nnscaler.policies.handle'
local log = require('nnscaler.log').logger 'nnscaler.policies'
local search = require 'nnscaler.policies.rannc_stages'
local sorted_keys = require('nnscaler.sorted').sorted_keys
local slots = require 'nnscaler.optim.slots'
local solve = require 'nnscaler._C.solve'
local units = require 'nnscaler.units'

local M = {}

M.keys = {
  hardware = { 'text', file = true }, rannc_costs = { 'boolean' },
  partition_num = { 'integer', least = 0 },
  min_pipeline_bs = { 'integer', least = 1 }, min_partition_num = { 'integer', least = 1 },
  max_partition_num = { 'integer', least = 1 }, do_coarsening = { 'boolean' },
  dp_search_all = { 'boolean' }, limit_dev_num_pot = { 'boolean' },
  limit_dev_num_more_than_bs = { 'boolean' }, opt_param_factor = { 'number', least = 0 },
  mem_limit_gb = { 'number', least = 0 }, mem_margin = { 'number', least = 0, most = 1 },
  alloc_repl_flat = { 'boolean' },
}

local kDefaults = { hardware = 'cpu', rannc_costs = false, partition_num = 0, min_pipeline_bs = 1,
  min_partition_num = 5, max_partition_num = 32, do_coarsening = true, dp_search_all = false,
  limit_dev_num_pot = true, limit_dev_num_more_than_bs = true, opt_param_factor = 2,
  mem_limit_gb = 0, mem_margin = 0.1, alloc_repl_flat = true }

-- Microseconds of each node by number, forward and backward, of the model on one device.
local function times(graph, cfg)
  local whole = handle.new(graph.graph, { plan_ngpus = 1, runtime_ngpus = 1, pas_config = {} })
  whole:replicate_rest()
  local plan = whole:finish 'rannc'
  local settings = autodist.settings(graph.graph, cfg)
  settings.micro_batches = 1
  local account = core.skeleton(graph.graph, { device = cfg.device, plan = plan,
    embedded = cfg.embedded }):account(plan, settings)
  local forward, backward = {}, {}
  for _, spent in ipairs(account.ranks[1].spent) do
    local i = spent.node + 1
    forward[i] = (forward[i] or 0) + spent.forward * 1e6
    backward[i] = (backward[i] or 0) + spent.backward * 1e6
  end
  return forward, backward
end

local function bytes_of(value)
  local n = slots.width[value.dtype] or 4
  for _, size in ipairs(value.shape) do n = n * size end
  return n
end

-- Ranges of nodes, each with one that depends on a sample; parameter-derived ones go with the next.
local function atoms(graph)
  local batch, list, first = {}, {}, 1
  for _, value in ipairs(graph.values) do batch[value.id] = value.role == 'input' end
  local nodes = graph:nodes()
  for i, node in ipairs(nodes) do
    local of_sample = false
    for _, id in ipairs(node.inputs) do of_sample = of_sample or batch[id] end
    for _, id in ipairs(node.outputs) do batch[id] = of_sample end
    if of_sample or i == #nodes then
      list[#list + 1] = { first = first, last = i }
      first = i + 1
    end
  end
  return list
end

-- Merges neighbours to blocks of at most two standard deviations above the mean, round by round,
-- then the smallest until there are few enough.
local function blocks(list, cost, config)
  for _, block in ipairs(list) do block.cost = cost(block.first, block.last) end
  local function join(at)
    local a, b = list[at], table.remove(list, at + 1)
    list[at] = { first = a.first, last = b.last, cost = a.cost + b.cost, fresh = true }
  end
  local before
  while config.do_coarsening and #list ~= before and #list > 3
    and #list > config.min_partition_num do
    before = #list
    local mean, square, order = 0, 0, {}
    for i, block in ipairs(list) do
      mean, order[i], block.fresh = mean + block.cost / #list, block, false
    end
    for _, block in ipairs(list) do square = square + (block.cost - mean) ^ 2 / #list end
    table.sort(order, function(a, b)
      if a.cost ~= b.cost then return a.cost < b.cost end
      return a.first < b.first
    end)
    for _, block in ipairs(order) do
      for at = 1, #list - 1 do
        local other = list[at + 1]
        if list[at] == block and not other.fresh and #list > config.min_partition_num
          and block.cost + other.cost <= mean + 2 * math.sqrt(square) then
          join(at)
          break
        end
      end
    end
  end
  while #list > config.max_partition_num do
    local at = 1
    for i, block in ipairs(list) do
      if block.cost < list[at].cost then at = i end
    end
    local left, right = list[at - 1], list[at + 1]
    join((left and (not right or left.cost <= right.cost)) and at - 1 or at)
  end
  return list
end

-- What the stage search asks of ranges of blocks.
local function problem(graph, cfg, config, list, rows, forward, backward)
  local values, nodes, known = graph.values, graph:nodes(), {}
  local last_use = {}
  for i, node in ipairs(nodes) do
    for _, id in ipairs(node.inputs) do last_use[id] = i end
  end
  -- Sums over a range, at the rows of the graph.
  local function range(from, to)
    local key = from * 1000 + to
    if known[key] then return known[key] end
    local r = { forward = 0, backward = 0, enter = 0, leave = 0, weights = 0, halves = 0, kept = 0 }
    local first, last, seen = list[from].first, list[to].last, {}
    for i = first, last do
      r.forward, r.backward = r.forward + (forward[i] or 0), r.backward + (backward[i] or 0)
      for _, id in ipairs(nodes[i].inputs) do
        local value = values[id + 1]
        if not seen[id] then
          seen[id] = true
          if value.role == 'parameter' or value.role == 'buffer' then
            r.weights = r.weights + bytes_of(value)
            if value.dtype:find '16$' then r.halves = r.halves + bytes_of(value) end
          elseif value.role == 'input' or value.producer and value.producer + 1 < first then
            r.enter = r.enter + bytes_of(value)
          end
        end
      end
      for _, id in ipairs(nodes[i].outputs) do
        local value = values[id + 1]
        if value.requires_grad then r.kept = r.kept + bytes_of(value) end
        if i == last or (last_use[id] or 0) > last then r.leave = r.leave + bytes_of(value) end
      end
    end
    known[key] = r
    return r
  end
  local memory = solve.hardware(config.hardware).memory
  if config.mem_limit_gb > 0 then memory = math.min(memory, config.mem_limit_gb * 2 ^ 30) end
  local copies = config.rannc_costs and 3 or 2 -- weights and gradients; RaNNC holds those twice
  return {
    blocks = #list, batch = rows * cfg.micro_batches, devices = cfg.plan_ngpus,
    devices_per_node = cfg.plan_ngpus, limit = math.floor(memory * (1 - config.mem_margin)),
    min_pipeline = cfg.micro_batches, max_pipeline = cfg.micro_batches,
    opt_param_factor = config.opt_param_factor, min_pipeline_bs = config.min_pipeline_bs,
    partition_num = config.partition_num,
    dp_search_all = config.dp_search_all or not config.rannc_costs,
    limit_dev_num_pot = config.limit_dev_num_pot,
    limit_dev_num_more_than_bs = config.limit_dev_num_more_than_bs,
    profile = function(from, to, samples, micro)
      local r, share = range(from, to), samples / rows
      local f = math.floor(r.forward * share)
      local again = config.rannc_costs and micro > 1 and f or 0
      return f, math.floor(r.backward * share) + again, copies * r.weights + r.kept * share
    end,
    input = function(from, to, samples) return range(from, to).enter * samples / rows end,
    output = function(from, to, samples) return range(from, to).leave * samples / rows end,
    parameters = function(from, to) return range(from, to).weights end,
    halves = function(from, to) return range(from, to).halves end,
  }
end

-- Gives the nodes of a handle what a found plan says.
local function apply(graph, cfg, config, list, found)
  local nodes, counts, first = graph:nodes(), {}, {}
  for s, stage in ipairs(found.stages) do
    counts[s] = stage.replicas
    if s > 1 then first[s - 1] = nodes[list[stage.from].first] end
  end
  if #counts > 1 then
    graph:stage(first, search.allocate(counts, config.alloc_repl_flat))
    -- Forward of a module inside a hand-written model ends before its backward begins.
    local schedule = (config.rannc_costs or cfg.embedded) and 'gpipe' or '1f1b'
    graph:schedule(schedule, cfg.micro_batches)
  end
  local where = { input = 0, dim = 0 }
  for s, stage in ipairs(found.stages) do
    local own = {}
    for i = list[stage.from].first, list[stage.to].last do
      local node = nodes[i]
      own[#own + 1] = node
      if counts[s] > 1 and #node.inputs > 0 and not graph:refusal(node, where, counts[s]) then
        graph:partition(node, where, counts[s])
      end
    end
    if config.rannc_costs and cfg.micro_batches > 1 then graph:recompute(own) end
  end
  graph:replicate_rest()
end

---@class nnscaler.rannc.Row what RaNNC prints of a stage; bytes and microseconds of a micro-batch
---@field name string MERGE_first_last, blocks from 0
---@field replicas integer of the whole run
---@field forward integer
---@field backward integer
---@field reduce integer of its gradients
---@field enter number
---@field leave number
---@field weights number
---@field halves number of those, of 16-bit numbers
---@field peak number
---@field state number of the optimizer
---@field buffers number of what is received, its gradient, and sent
---@field devices integer[] of each unit

-- The rows of a found plan.
local function rows_of(p, found, total, flat)
  local counts, out = {}, {}
  for s, stage in ipairs(found.stages) do counts[s] = stage.replicas end
  local devices = search.allocate(counts, flat)
  for s, stage in ipairs(found.stages) do
    local samples = math.ceil(p.batch / (stage.replicas * found.micro))
    local f, g, peak = p.profile(stage.from, stage.to, samples, found.micro)
    local weights = p.parameters(stage.from, stage.to)
    local enter, leave = p.input(stage.from, stage.to, samples),
      p.output(stage.from, stage.to, samples)
    out[s] = { name = ('MERGE_%d_%d'):format(stage.from - 1, stage.to - 1),
      replicas = stage.replicas * total, forward = f, backward = g,
      reduce = search.all_reduce(weights), enter = enter, leave = leave, weights = weights,
      halves = p.halves(stage.from, stage.to), peak = peak, state = p.opt_param_factor * weights,
      buffers = 2 * enter + leave, devices = devices[s] }
  end
  return out
end

-- The table that RaNNC prints of its stages.
local function tell(found)
  log.info('Estimated profiles of subgraphs: batch_size=%d np=%d pipeline=%d use_amp=0 zero=%d',
    found.batch, found.ranks, found.micro, found.zero)
  for _, row in ipairs(found.rows) do
    log.info('  graph=%s repl=%d fwd_time=%d bwd_time=%d ar_time=%d in_size=%.0f out_size=%.0f '
      .. 'fp32param_size=%.0f fp16param_size=%.0f total_mem=%.0f (fwd+bwd=%.0f opt=%.0f comm=%.0f)',
      row.name, row.replicas, row.forward, row.backward, row.reduce, row.enter, row.leave,
      row.weights - row.halves, row.halves, row.peak + row.state + row.buffers, row.peak,
      row.state, row.buffers)
  end
  for _, row in ipairs(found.rows) do
    local ranks = {}
    for first = 0, found.ranks - 1, found.plan_ngpus do
      for _, device in ipairs(row.devices) do ranks[#ranks + 1] = first + device end
    end
    log.info('Assigned subgraph %s to rank[%s]', row.name, table.concat(ranks, ','))
  end
end

-- The plan that the simulator finds fastest within the memory of a device.
local function fastest(graph, cfg, config, list, p, kept)
  local best, settings, why = nil, autodist.settings(graph.graph, cfg), nil
  for _, found in ipairs(kept) do
    local trial = handle.new(graph.graph, cfg)
    local ok, result = pcall(function()
      apply(trial, cfg, config, list, found)
      local plan = trial:finish 'rannc'
      return core.simulate(graph.graph, { device = cfg.device, plan = plan,
        set_mb = cfg.bucket_cap_mb, embedded = cfg.embedded }, settings)
    end)
    if ok then
      log.info('rannc: %d stage(s): %.4g s a step, %s a device', #found.stages, result.seconds,
        units.bytes(result.total))
      if result.total <= p.limit and (not best or result.seconds < best.seconds) then
        best = { found = found, seconds = result.seconds }
      end
    elseif type(result) == 'table' and result.kind == 'plan' then
      why = result.message
    else
      error(result, 0)
    end
    graph.beat()
  end
  return best and best.found, why
end

--- What is found for a graph.
---@param graph table handle
---@param cfg nnscaler.PolicyConfig
---@return { rows: nnscaler.rannc.Row[], limit: number, batch: integer, ranks: integer,
---  plan_ngpus: integer, micro: integer, zero: integer, apply: fun() }
function M.find(graph, cfg)
  local given, config = cfg.pas_config or {}, {}
  for _, key in ipairs(sorted_keys(kDefaults)) do
    config[key] = given[key]
    if config[key] == nil then config[key] = kDefaults[key] end
  end
  if not config.rannc_costs and given.opt_param_factor == nil then -- what this optimizer keeps
    config.opt_param_factor = autodist.settings(graph.graph, cfg).state or config.opt_param_factor
  end
  config.hardware = cfg.hardware or config.hardware
  local inputs = graph.graph:inputs()
  local rows = inputs[1] and inputs[1].shape[1]
  if not rows then
    fail('plan', 'policies.rannc', 'the model takes no tensor with rows of samples; expected one '
      .. 'as its first argument')
  end
  local priced = { device = cfg.device, hardware = config.hardware, optimizer = cfg.optimizer,
    micro_batches = cfg.micro_batches or 1, bucket_cap_mb = cfg.bucket_cap_mb,
    plan_ngpus = cfg.plan_ngpus, runtime_ngpus = cfg.runtime_ngpus, zero = cfg.zero,
    undivided = cfg.undivided, embedded = cfg.embedded, pas_config = {} }
  local forward, backward = times(graph, priced)
  local list = blocks(atoms(graph), function(first, last)
    local sum = 0
    for i = first, last do sum = sum + (forward[i] or 0) + (backward[i] or 0) end
    return sum
  end, config)
  local p = problem(graph, priced, config, list, rows, forward, backward)
  log.info('Assuming batch size: %d', p.batch * cfg.runtime_ngpus / cfg.plan_ngpus)
  log.info('Available device memory: %.0f', p.limit)
  log.info 'Starting model partitioning ...'
  local kept, best = search.search(p)
  if cfg.note then
    cfg.note(('%d blocks on %d device(s); %d plan(s) of stages are feasible, decided by %s'):format(
      p.blocks, cfg.plan_ngpus, #kept, config.rannc_costs and "RaNNC's formulas"
      or 'the simulator'))
  end
  local why
  if best and not config.rannc_costs then
    best, why = fastest(graph, priced, config, list, p, kept)
  end
  if not best then
    local all = p.parameters(1, p.blocks)
    fail('plan', 'policies.rannc', ('no feasible allocation: %d blocks on %d device(s) of %s; '
      .. 'weights alone take %s%s'):format(p.blocks, cfg.plan_ngpus, units.bytes(p.limit),
      units.bytes(all), why and '; ' .. why or ''), 'more devices (compute_config.plan_ngpus), '
      .. 'or pas_config.mem_limit_gb and mem_margin')
  end
  local total = cfg.runtime_ngpus / cfg.plan_ngpus
  return { rows = rows_of(p, best, total, config.alloc_repl_flat), limit = p.limit,
    batch = p.batch * total, ranks = cfg.runtime_ngpus, micro = best.micro,
    plan_ngpus = cfg.plan_ngpus, zero = (cfg.zero and cfg.zero.level or 0) > 0 and 1 or 0,
    apply = function() apply(graph, priced, config, list, best) end }
end

function M.policy(graph, cfg)
  local found = M.find(graph, cfg)
  tell(found)
  found.apply()
end

return setmetatable(M, { __call = function(_, graph, cfg) return M.policy(graph, cfg) end })
