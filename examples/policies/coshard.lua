--- Co-shard: each device runs its share of every MLP in turns, one part of the rows after another,
--- and runs a part again in backward instead of keeping it. Only one part's wide activations live
--- at a time; weights stay whole. `pas_config.turns` (default 2) is the number of parts a device.
---
---   nnscaler run recipes/nanogpt.lua pas_policy=examples/policies/coshard.lua -n 2
return function(graph, cfg)
  local turns = (cfg.pas_config or {}).turns or 2
  local rows = { input = 0, dim = 0 }
  local devices = {} -- 0, 0, 1, 1, …: parts of one device stand in a row
  for device = 0, cfg.plan_ngpus - 1 do
    for _ = 1, turns do devices[#devices + 1] = device end
  end
  for mlp in graph:modules '*.mlp' do
    graph:recompute(mlp)
    for _, node in ipairs(mlp:nodes()) do
      graph:partition(node, rows, #devices)
      graph:assign(node, devices)
    end
  end
  -- The rest is cut by rows as well, one part a device.
  for _, node in ipairs(graph:nodes()) do
    if not graph:planned(node) and #node.inputs > 0
      and not graph:refusal(node, rows, cfg.plan_ngpus) then
      graph:partition(node, rows, cfg.plan_ngpus)
    end
  end
  graph:replicate_rest()
end
