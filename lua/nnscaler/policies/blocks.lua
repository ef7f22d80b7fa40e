--- Cuts a graph into pipeline stages at the beginnings of repeated blocks ('h.0', 'h.1', …).
local fail = require 'nnscaler.fail'

local M = {}

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

-- The start nearest to `wanted` behind `after`; any operator where the model has no blocks.
local function nearest(list, wanted, after)
  local best = nil
  for _, i in ipairs(list) do
    if i > after and (not best or math.abs(i - wanted) < math.abs(best - wanted)) then best = i end
  end
  return best or math.max(wanted, after + 1)
end

--- Makes stages of about equally many operators; each gets as many devices, in order.
---@param graph table handle
---@param cfg nnscaler.PolicyConfig
---@param area string of errors
---@return integer devices a stage
function M.stages(graph, cfg, area)
  local config, nodes = cfg.pas_config or {}, graph:nodes()
  local stages = config.pipeline_nstages or 1
  if stages == 'auto' then stages = cfg.plan_ngpus end
  if cfg.plan_ngpus % stages ~= 0 then
    fail('plan', area, ('%d stages on plan_ngpus = %d devices; expected a divisor'):format(stages,
      cfg.plan_ngpus))
  end
  local each = cfg.plan_ngpus / stages
  if stages == 1 then return each end
  if #nodes < stages then
    fail('plan', area, ('%d operators do not fill %d stages'):format(#nodes, stages),
      'use fewer stages')
  end
  local first, devices, places, at = {}, {}, starts(nodes), 1
  for s = 0, stages - 1 do
    if s > 0 then
      at = nearest(places, math.floor(s * #nodes / stages) + 1, at)
      first[s] = nodes[at]
    end
    devices[s + 1] = {}
    for i = 0, each - 1 do devices[s + 1][i + 1] = s * each + i end
  end
  graph:stage(first, devices)
  graph:schedule(config.pipeline_scheduler or '1f1b',
    config.pipeline_nmicros or cfg.micro_batches or stages)
  return each
end

return M
