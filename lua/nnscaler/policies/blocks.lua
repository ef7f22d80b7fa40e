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

--- First operators of all stages but the first: about equally many operators a stage, each stage
--- from the beginning of a block where one lies within half a stage of the even cut. There one
--- tensor crosses; inside a block it would be several.
---@param nodes table[] in the order of the graph, at least as many as stages
---@param stages integer
---@return table[]
function M.cuts(nodes, stages)
  local places, each, cuts, at = starts(nodes), #nodes / stages, {}, 1
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
    cuts[s], at = nodes[best], best
  end
  return cuts
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
  local devices = {}
  for s = 0, stages - 1 do
    devices[s + 1] = {}
    for i = 0, each - 1 do devices[s + 1][i + 1] = s * each + i end
  end
  graph:stage(M.cuts(nodes, stages), devices)
  graph:schedule(config.pipeline_scheduler or '1f1b',
    config.pipeline_nmicros or cfg.micro_batches or stages)
  return each
end

return M
