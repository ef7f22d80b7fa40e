--- Cuts a graph into pipeline stages at the beginnings of repeated blocks ('h.0', 'h.1', …).
local core = require 'nnscaler._C.plan'
local fail = require 'nnscaler.fail'

local M = {}

--- Keys of pas_config that say which pipeline.
M.keys = {
  pipeline_nstages = { 'integer', least = 1, also = 'auto' },
  pipeline_chunks = { 'integer', least = 1 },
  pipeline_scheduler = { 'text' },
}

-- Path of the innermost list entry that holds a module: 'model.layers.3' of 'model.layers.3.mlp'.
local function block_of(module) return (module .. '.'):match '^(.-%.%d+)%.' end

-- Nodes that begin a block, or follow the last one.
local function starts(nodes)
  local list, before = {}, block_of(nodes[1].module)
  for i = 2, #nodes do
    local block = block_of(nodes[i].module)
    if block ~= before then list[#list + 1] = i end
    before = block
  end
  return list
end

-- First operators of all stages but the first: about equally many operators a stage, each stage
-- from the beginning of a block where one lies within half a stage of the even cut. There one
-- tensor crosses; inside a block it would be several.
local function cuts(nodes, stages)
  local places, each, list, at = starts(nodes), #nodes / stages, {}, 1
  for s = 1, stages - 1 do
    local even = math.floor(s * each) + 1
    local best = math.max(even, at + 1)
    local distance = each / 2
    for _, i in ipairs(places) do
      -- As many operators must stay as there are stages to come.
      if i > at and i <= #nodes - (stages - 1 - s) and math.abs(i - even) < distance then
        best, distance = i, math.abs(i - even)
      end
    end
    list[s], at = nodes[best], best
  end
  return list
end

-- Devices of each stage: pipeline rank r has devices r·each … r·each + each - 1.
local function stage_devices(ranks, each)
  local out = {}
  for s, r in ipairs(ranks) do
    out[s] = {}
    for i = 0, each - 1 do out[s][i + 1] = r * each + i end
  end
  return out
end

--- Makes the pipeline that `pas_config` asks for: `pipeline_nstages` ranks of it, each with as many
--- devices and with `pipeline_chunks` stages where the schedule wants several (default 2).
---@param graph table handle
---@param cfg nnscaler.PolicyConfig
---@param area string of errors
---@param default integer pipeline ranks where pas_config names none
---@return integer devices a stage
function M.stages(graph, cfg, area, default)
  local config, nodes = cfg.pas_config or {}, graph:nodes()
  local ranks = config.pipeline_nstages or default
  if ranks == 'auto' then ranks = cfg.plan_ngpus end
  if cfg.plan_ngpus % ranks ~= 0 then
    fail('plan', area, ('%d stages on plan_ngpus = %d devices; expected a divisor'):format(ranks,
      cfg.plan_ngpus))
  end
  local each = cfg.plan_ngpus / ranks
  -- Forward of a module inside a hand-written model ends before its backward begins.
  local name = config.pipeline_scheduler or cfg.embedded and 'gpipe' or '1f1b'
  local chunks = config.pipeline_chunks
  if name == '1f1b_interleaved' then chunks = chunks or 2 end
  local places = core.placement(name, ranks, chunks or 1)
  local stages = #places
  if #nodes < stages then
    fail('plan', area, ('%d operators do not fill %d stages'):format(#nodes, stages),
      'use fewer stages')
  end
  local micro_batches = cfg.micro_batches or ranks
  if config.pipeline_nmicros and config.pipeline_nmicros ~= micro_batches then
    fail('usage', area, ('pas_config.pipeline_nmicros is %d; a step has %d micro-batches a scale '
      .. 'unit'):format(config.pipeline_nmicros, micro_batches),
      'leave it out, or set grad_accumulation_steps or global_batch_size to match')
  end
  graph:stage(cuts(nodes, stages), stage_devices(places, each))
  graph:schedule(name, micro_batches, stages / ranks)
  return each
end

return M
