--- A pipeline by hand: three stages of a GPT, cut where the user wants them. The first has the
--- embeddings and the first blocks, the last the head and the loss; `pas_config.blocks` says with
--- which blocks the second and the third stage start (default: thirds).
---
---   nnscaler run recipes/nanogpt.lua pas_policy=examples/policies/three_stages.lua -n 3
local function first_node(graph, block)
  return graph:module('transformer.h.' .. block):nodes()[1]
end

return function(graph, cfg)
  assert(cfg.plan_ngpus % 3 == 0, 'three stages want a multiple of three devices')
  local blocks = 0
  for _ in graph:modules 'transformer.h.?' do blocks = blocks + 1 end
  local starts = (cfg.pas_config or {}).blocks
    or { math.ceil(blocks / 3), math.ceil(2 * blocks / 3) }

  local each, devices = cfg.plan_ngpus / 3, {}
  for s = 0, 2 do
    devices[s + 1] = {}
    for i = 1, each do devices[s + 1][i] = s * each + i - 1 end
  end
  graph:stage({ first_node(graph, starts[1]), first_node(graph, starts[2]) }, devices)
  graph:schedule('1f1b', cfg.micro_batches or 3)

  -- Inside a stage: rows over its devices where they divide.
  local rows = { input = 0, dim = 0 }
  for _, node in ipairs(graph:nodes()) do
    if each > 1 and #node.inputs > 0 and not graph:refusal(node, rows, each) then
      graph:partition(node, rows, each)
    end
  end
  graph:replicate_rest()
end
