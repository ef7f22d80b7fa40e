--- A pipeline with a schedule of its own: four stages on two devices, weight gradients apart, and
--- micro-batches out of order on the second one.
return function(graph, cfg)
  local nodes, first = graph:nodes(), {}
  for s = 1, 3 do first[s] = nodes[math.floor(s * #nodes / 4) + 1] end
  graph:stage(first, { { 0 }, { 1 }, { 0 }, { 1 } })
  graph:schedule { name = 'custom', micro_batches = cfg.micro_batches, orders = {
    'F0:0 F0:1 F0:2 F2:1 F2:0 B2:0 F2:2 B0:0 W2:0 B2:1 B2:2 B0:2 B0:1 W0:2 W2:2 W2:1 W0:0 W0:1',
    'F1:1 F1:0 F1:2 F3:0 B3:0 F3:1 W3:0 B3:1 B1:0 F3:2 B3:2 B1:1 B1:2 W3:1 W1:0 W1:2 W3:2 W1:1',
  } }
  graph:replicate_rest()
end
