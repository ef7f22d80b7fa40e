--- A policy for blocks of a hand-written model: rows in two turns a device, wide activations made
--- again in backward, what cannot be cut so is repeated.
return function(graph, cfg)
  local rows, devices, wide = { input = 0, dim = 0 }, {}, {}
  for device = 0, cfg.plan_ngpus - 1 do
    for _ = 1, 2 do devices[#devices + 1] = device end
  end
  for _, node in ipairs(graph:nodes()) do
    if node.module ~= '' and not graph:refusal(node, rows, #devices) then
      graph:partition(node, rows, #devices)
      graph:assign(node, devices)
      if node.module ~= 'norm' then wide[#wide + 1] = node end
    end
  end
  assert(#wide >= 3, 'a block has more to cut')
  graph:recompute(wide)
  graph:replicate_rest()
end
