--- A policy of tests: cuts every operator along the dimension of an operand that is
--- `pas_config.length` long, where that may be cut, into parts that differ by one where they must.
return function(graph, cfg)
  local values = graph.values
  for _, node in ipairs(graph:nodes()) do
    for _, place in ipairs(graph:choices(node)) do
      place.uneven = true
      local shape = values[node.inputs[place.input + 1] + 1].shape
      if shape[place.dim + 1] == cfg.pas_config.length
        and not graph:refusal(node, place, cfg.plan_ngpus) then
        graph:partition(node, place, cfg.plan_ngpus)
        break
      end
    end
  end
  graph:replicate_rest()
end
