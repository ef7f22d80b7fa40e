--- hybrid: an even split of the operators into `pas_config.pipeline_nstages` stages (default 2);
--- the other devices of the plan cut tensors inside a stage along dimension 0 of operand 0.
local fail = require 'nnscaler.fail'

-- Lists of devices: stage s gets devices s·n … s·n+n-1.
local function even_devices(stages, each)
  local out = {}
  for s = 0, stages - 1 do
    local devices = {}
    for i = 0, each - 1 do devices[i + 1] = s * each + i end
    out[s + 1] = devices
  end
  return out
end

return function(graph, cfg)
  local config = cfg.pas_config or {}
  local stages = config.pipeline_nstages or 2
  if stages == 'auto' then stages = cfg.plan_ngpus end
  if cfg.plan_ngpus % stages ~= 0 then
    fail('plan', 'policies.hybrid',
      ('%d stages on plan_ngpus = %d devices; expected a divisor'):format(stages, cfg.plan_ngpus))
  end
  local nodes = graph:nodes()
  if #nodes < stages then
    fail('plan', 'policies.hybrid',
      ('%d operators do not fill %d stages'):format(#nodes, stages), 'use fewer stages')
  end
  local each = cfg.plan_ngpus / stages
  local first = {}
  for s = 1, stages - 1 do first[s] = nodes[math.floor(s * #nodes / stages) + 1] end
  graph:stage(first, even_devices(stages, each))
  graph:schedule(config.pipeline_scheduler or '1f1b',
    config.pipeline_nmicros or cfg.micro_batches or stages)
  if each > 1 then
    local where = { input = 0, dim = 0 }
    for _, node in ipairs(nodes) do
      if #node.inputs > 0 and not graph:refusal(node, where, each) then
        graph:partition(node, where, each)
      end
    end
  end
  graph:replicate_rest()
end
