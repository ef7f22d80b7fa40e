--- tp: cuts every operator along a legal dimension drawn at random (`pas_config.seed`, default 1),
--- longest dimensions first among equals of the draw; a test of plans more than a plan.
--- Calls that a loop of the model unrolls sixteen times or more draw once: its steps stay alike.
--- `pas_config.replicated` is the share of operators left whole (default 0), `pas_config.uneven`
--- whether parts may differ by one (default false).
local M = {}

local UNROLLED = 16

-- Minimal standard generator (Park, Miller 1988): the same draw in every process.
function M.random(seed)
  local state = seed % 2147483646 + 1
  return function(n)
    state = state * 16807 % 2147483647
    return state % n + 1
  end
end

-- Calls of one operator at one line of one module are told apart by nothing but their number.
local function line_of(node)
  return ('%s %s %s:%d'):format(node.module, node.op, node.file, node.line)
end

function M.policy(graph, cfg)
  local config = cfg.pas_config or {}
  local draw = M.random(config.seed or 1)
  local share = config.replicated or 0
  local calls, drawn = {}, {}
  for _, node in ipairs(graph:nodes()) do
    calls[line_of(node)] = (calls[line_of(node)] or 0) + 1
  end
  for _, node in ipairs(graph:nodes()) do
    local legal = {}
    for _, place in ipairs(graph:choices(node)) do
      place.uneven = config.uneven
      if not graph:refusal(node, place, cfg.plan_ngpus) then legal[#legal + 1] = place end
    end
    local line = line_of(node)
    local before = calls[line] >= UNROLLED and drawn[line]
    if #legal > 0 and before and before.count == #legal then
      if before.which then graph:partition(node, legal[before.which], cfg.plan_ngpus) end
    elseif #legal > 0 then
      local which = draw(1000) > share * 1000 and draw(#legal) or nil
      if which then graph:partition(node, legal[which], cfg.plan_ngpus) end
      drawn[line] = { count = #legal, which = which }
    end
  end
  graph:replicate_rest()
end

M.keys = {
  seed = { 'integer', least = 0 }, replicated = { 'number', least = 0, most = 1 },
  uneven = { 'boolean' },
}

return setmetatable(M, { __call = function(_, graph, cfg) return M.policy(graph, cfg) end })
