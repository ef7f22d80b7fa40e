--- hybrid: an even split of the operators, at the beginnings of blocks, over
--- `pas_config.pipeline_nstages` pipeline ranks (default 2), each with `pipeline_chunks` stages
--- where the schedule wants several (default 2); the other devices of the plan cut tensors inside
--- a stage along dimension 0 of operand 0.
local blocks = require 'nnscaler.policies.blocks'
local keys = require 'nnscaler.policies.keys'

return keys.policy(blocks.keys, function(graph, cfg)
  local each = blocks.stages(graph, cfg, 'policies.hybrid', 2)
  if each > 1 then
    local where = { input = 0, dim = 0 }
    for _, node in ipairs(graph:nodes()) do
      if #node.inputs > 0 and not graph:refusal(node, where, each) then
        graph:partition(node, where, each)
      end
    end
  end
  graph:replicate_rest()
end)
