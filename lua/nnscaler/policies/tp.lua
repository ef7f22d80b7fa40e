--- tp: cuts every operator along a legal dimension drawn at random (`pas_config.seed`, default 1),
--- longest dimensions first among equals of the draw; a test of plans more than a plan.
--- `pas_config.replicated` is the share of operators left whole (default 0), `pas_config.uneven`
--- whether parts may differ by one (default false).
local M = {}

-- Minimal standard generator (Park, Miller 1988): the same draw in every process.
function M.random(seed)
  local state = seed % 2147483646 + 1
  return function(n)
    state = state * 16807 % 2147483647
    return state % n + 1
  end
end

function M.policy(graph, cfg)
  local config = cfg.pas_config or {}
  local draw = M.random(config.seed or 1)
  local share = config.replicated or 0
  for _, node in ipairs(graph:nodes()) do
    local legal = {}
    for _, place in ipairs(graph:choices(node)) do
      place.uneven = config.uneven
      if not graph:refusal(node, place, cfg.plan_ngpus) then legal[#legal + 1] = place end
    end
    if #legal > 0 and draw(1000) > share * 1000 then
      graph:partition(node, legal[draw(#legal)], cfg.plan_ngpus)
    end
  end
  graph:replicate_rest()
end

return setmetatable(M, { __call = function(_, graph, cfg) return M.policy(graph, cfg) end })
