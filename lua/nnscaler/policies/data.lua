--- data: cuts every operator along dimension 0 of its first operand where it can be cut, else
--- replicates it.
local keys = require 'nnscaler.policies.keys'

return keys.policy({}, function(graph, cfg)
  local where = { input = 0, dim = 0 }
  for _, node in ipairs(graph:nodes()) do
    if #node.inputs > 0 and not graph:refusal(node, where, cfg.plan_ngpus) then
      graph:partition(node, where, cfg.plan_ngpus)
    end
  end
  graph:replicate_rest()
end)
