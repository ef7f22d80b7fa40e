--- hybrid: an even split of the operators, at the beginnings of blocks, over
--- `pas_config.pipeline_nstages` pipeline ranks (default 2), each with `pipeline_chunks` stages
--- where the schedule wants several (default 2); the other devices of the plan cut tensors inside
--- a stage along dimension 0 of operand 0.
local blocks = require 'nnscaler.policies.blocks'
local core = require 'nnscaler._C.plan'
local fail = require 'nnscaler.fail'

-- Devices of each stage: pipeline rank r has devices r·each … r·each + each - 1.
local function stage_devices(ranks, each)
  local out = {}
  for s, r in ipairs(ranks) do
    out[s] = {}
    for i = 0, each - 1 do out[s][i + 1] = r * each + i end
  end
  return out
end

return function(graph, cfg)
  local config = cfg.pas_config or {}
  local ranks = config.pipeline_nstages or 2
  if ranks == 'auto' then ranks = cfg.plan_ngpus end
  if cfg.plan_ngpus % ranks ~= 0 then
    fail('plan', 'policies.hybrid',
      ('%d stages on plan_ngpus = %d devices; expected a divisor'):format(ranks, cfg.plan_ngpus))
  end
  local name, chunks = config.pipeline_scheduler or '1f1b', config.pipeline_chunks
  if name == '1f1b_interleaved' then chunks = chunks or 2 end
  local places = core.placement(name, ranks, chunks or 1)
  local stages, nodes = #places, graph:nodes()
  if #nodes < stages then
    fail('plan', 'policies.hybrid',
      ('%d operators do not fill %d stages'):format(#nodes, stages), 'use fewer stages')
  end
  local micro_batches = cfg.micro_batches or ranks
  if config.pipeline_nmicros and config.pipeline_nmicros ~= micro_batches then
    fail('usage', 'policies.hybrid', ('pas_config.pipeline_nmicros is %d; a step has %d '
      .. 'micro-batches a scale unit'):format(config.pipeline_nmicros, micro_batches),
      'leave it out, or set grad_accumulation_steps or global_batch_size to match')
  end
  local each = cfg.plan_ngpus / ranks
  graph:stage(blocks.cuts(nodes, stages), stage_devices(places, each))
  graph:schedule(name, micro_batches, stages / ranks)
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
