--- autodist: the cuts of all operators that take least time on given hardware within a limit of
--- memory, found by the solver (src/solve). Slots, gradients and weights rest in shards, and blocks
--- run again in backward, where that is faster or nothing else fits.
---
--- `pas_config`: hardware ('cpu'; a known machine, 'measured' or the path of a description),
--- re_profile (measures this machine anew), mem_constraint
--- (GiB a device; -1: 80 % of the hardware's memory); pipeline_nstages (1; pipeline ranks, 'auto':
--- the best divisor of plan_ngpus), pipeline_scheduler (the best of 1f1b, 1f1b_interleaved, zb_h1),
--- max_partition_degree (most devices of a stage, for 'auto'), max_pipeline_bubble_ratio (most of a
--- step that pipeline ranks may wait), partition_constraints_path (YAML: which cuts operators may
--- have).
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local format = require 'nnscaler.format'
local log = require('nnscaler.log').logger 'nnscaler.policies'
local optim = require 'nnscaler.optim'
local slots = require 'nnscaler.optim.slots'
local solve = require 'nnscaler._C.solve'
local units = require 'nnscaler.units'

local M = {}

-- Bytes that an optimizer keeps for each byte of the weights of a graph.
local function state_of(optimizer, graph)
  if not optimizer then return nil end
  local weights, total = {}, 0
  for _, value in ipairs(graph:parameters()) do
    if value.requires_grad then
      weights[#weights + 1] = { name = value.name, data = value, requires_grad = true }
      local elements = 1
      for _, size in ipairs(value.shape) do elements = elements * size end
      total = total + elements * slots.width[value.dtype]
    end
  end
  return total > 0 and slots.bytes(optim.new(optimizer, weights)) / total or 0
end

--- What the planner and its simulator need of a policy's configuration.
---@param graph userdata nnscaler.Graph
---@param cfg nnscaler.PolicyConfig
---@return nnscaler.StepSettings
function M.settings(graph, cfg)
  local cap = cfg.bucket_cap_mb
  return { hardware = cfg.hardware or (cfg.pas_config or {}).hardware,
    micro_batches = cfg.micro_batches, state = state_of(cfg.optimizer, graph),
    optimizer = slots.name(cfg.optimizer),
    bucket_bytes = cap and math.max(1, math.floor(cap * 2 ^ 20)) or nil }
end

--- Most bytes of a device.
---@param cfg nnscaler.PolicyConfig
---@return number
function M.memory(cfg)
  local constraint = (cfg.pas_config or {}).mem_constraint or -1
  if constraint == -1 then
    return math.floor(0.8 * solve.hardware(cfg.hardware or (cfg.pas_config or {}).hardware or 'cpu')
      .memory)
  end
  if constraint <= 0 then
    fail('usage', 'policies.autodist', ('pas_config.mem_constraint is %g; expected GiB a device, '
      .. 'or -1: 80 %% of the memory of the hardware'):format(constraint))
  end
  return math.floor(constraint * 2 ^ 30)
end

--- Whether an error says that nothing fits in memory.
---@param err any
---@return boolean
function M.lacks_memory(err)
  return type(err) == 'table' and err.kind == 'plan'
    and (err.message:find('keeps %S+ %a+ a device') or err.message:find 'no feasible allocation')
    ~= nil
end

-- What was searched for last: who chooses the number of devices asks what a policy then asks again.
local last = {}

local function search(graph, options)
  local key = graph:hash() .. base.json_encode(options)
  if last.key ~= key then
    last = { key = key, found = solve.autodist(graph, options) }
  end
  return last.found
end

--- What was found for a graph, and the options that it was asked with.
---@param graph userdata nnscaler.Graph
---@param cfg nnscaler.PolicyConfig
---@return nnscaler.Autodist, nnscaler.AutodistOptions
function M.search(graph, cfg)
  local options = M.settings(graph, cfg)
  options.plan_ngpus, options.runtime_ngpus = cfg.plan_ngpus, cfg.runtime_ngpus
  options.device, options.memory = cfg.device, M.memory(cfg)
  local config = cfg.pas_config or {}
  local ranks = config.pipeline_nstages or 1
  options.pipeline = ranks == 'auto' and (cfg.embedded and 1 or 0) or ranks
  if options.pipeline > 0 and cfg.plan_ngpus % options.pipeline ~= 0 then
    fail('plan', 'policies.autodist', ('pas_config.pipeline_nstages is %d on plan_ngpus = %d '
      .. 'devices; expected a divisor'):format(options.pipeline, cfg.plan_ngpus))
  end
  options.schedule = config.pipeline_scheduler
  options.most_width, options.most_bubble = config.max_partition_degree,
    config.max_pipeline_bubble_ratio
  options.zero = cfg.zero and cfg.zero.level
  options.constraints = config.partition_constraints_path
  return search(graph, options), options
end

--- Seconds of a step that a bound stands beside: by the search's costs, as the bound is, where the
--- simulator says less.
---@param found nnscaler.Autodist
---@return number
function M.taken(found)
  return math.max(found.searched, found.cost.seconds)
end

--- One line that says what was found, and how sure that is.
---@param found nnscaler.Autodist
---@param options nnscaler.AutodistOptions
---@param least? number seconds that no plan goes below within the limit, whatever rests in shards
---@return string
function M.line(found, options, least)
  local of = 'no plan of these cuts'
    .. (found.zero > 0 and not least and ' with whole weights' or '')
  local gap = least and 1 - least / M.taken(found) or found.gap
  local proof = found.exact and of .. ' is faster'
    or gap == 1 and 'how much faster others could be is not known, the search was thinned'
    or (of .. ' is faster by more than %.1f %%'):format(100 * gap)
  if found.bound then proof = proof .. ' within the limit of memory' end
  if least then proof = proof .. ', by a linear program' end
  return ('%d operators (%d distinct) on %d device(s), %s: %.4g s a step, %s of %s a device; %s; '
    .. '%d partial and %d whole plans in %.2f s'):format(found.calls, found.kinds,
    options.plan_ngpus, found.arranged, found.cost.seconds,
    units.bytes(found.cost.total), units.bytes(options.memory), proof,
    found.labels, found.simulated, found.space_seconds + found.search_seconds + found.check_seconds)
end

-- Statistics of the search, for a report, which alone waits for the bound.
local function tell(graph, found, options, note)
  note(('constraints on partitions: %s; ZeRO %s'):format(options.constraints or 'none',
    options.zero and options.zero .. ', as the job says'
    or found.zero .. ', the fastest of the levels'))
  note(function()
    local least = not found.exact
      and solve.bound(graph, options, M.taken(found), found.fastest) or nil
    return M.line(found, options, least)
  end)
  note(('%s priced cuts, %s searched, %s simulated what was found'):format(
    format.seconds(found.space_seconds), format.seconds(found.search_seconds),
    format.seconds(found.check_seconds)))
end

function M.policy(graph, cfg)
  local found, options = M.search(graph.graph, cfg)
  log.info_once('autodist: %s', M.line(found, options))
  if cfg.note then tell(graph.graph, found, options, cfg.note) end
  local nodes = graph:nodes()
  local function nodes_of(ids)
    local list = {}
    for i, id in ipairs(ids) do list[i] = nodes[id + 1] end
    return list
  end
  if #found.first > 0 then
    graph:stage(nodes_of(found.first), found.devices)
    graph:schedule(found.schedule, cfg.micro_batches, found.chunks)
  end
  for _, cut in ipairs(found.cuts) do
    graph:partition(nodes[cut[1] + 1], { input = cut[2], dim = cut[3] }, #found.devices[1])
  end
  graph:replicate_rest()
  for _, ids in ipairs(found.again) do graph:recompute(nodes_of(ids)) end
  if not options.zero then graph:level(found.zero) end
end

M.keys = { hardware = { 'text', file = true }, re_profile = { 'boolean' },
  mem_constraint = { 'number', least = -1 },
  pipeline_nstages = { 'integer', least = 1, also = 'auto' }, pipeline_scheduler = { 'text' },
  max_partition_degree = { 'integer', least = 1 },
  partition_constraints_path = { 'text', file = true },
  max_pipeline_bubble_ratio = { 'number', least = 0, most = 1 } }

return setmetatable(M, { __call = function(_, graph, cfg) return M.policy(graph, cfg) end })
