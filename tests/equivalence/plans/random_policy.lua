--- A policy that draws a legal plan: `pas_config` = { seed, stages, schedule?, recompute?, keep?,
--- aims? }. Every choice is a function of the seed and the operator's number, so that leaving some
--- out (`keep`: numbers of the operators that are still cut) changes no other: plans can be shrunk.
--- `aims` = { { id, input, dim }, … } are taken wherever they are legal.
local M = {}

-- A draw in [0, n) from whole numbers (Park, Miller 1988, some rounds).
local function draw(n, ...)
  local state = 1
  for i = 1, select('#', ...) do
    state = (state * 16807 + (select(i, ...)) * 48271 + i) % 2147483647
    for _ = 1, 3 do state = state * 16807 % 2147483647 end
  end
  return state % n
end
M.draw = draw

-- What the last plan did: operators, how many of them are cut, and which ways of cutting occurred.
function M.reset(nodes)
  M.nodes, M.cut, M.splits = nodes, {}, {}
end
function M.note(node, place)
  M.cut[node.id] = true
  M.splits[M.way(node, place)] = true
end
--- Name of a way of cutting.
function M.way(node, place)
  return ('%s input %d dim %d'):format(node.op, place.input, place.dim)
end

-- Ways to write the devices of a stage as a product of steps.
local meshes = {
  [1] = { { 1 } }, [2] = { { 2 } }, [3] = { { 3 } },
  [4] = { { 4 }, { 2, 2 }, { 2, 2 } }, [8] = { { 2, 4 }, { 4, 2 }, { 2, 2, 2 } },
}

-- Drawn sizes of so many parts of an operand's dimension, or nil where it is too short.
local function sizes_of(graph, node, place, parts, ...)
  local left = graph.values[node.inputs[place.input + 1] + 1].shape[place.dim + 1]
  if left < parts then return nil end
  local sizes = {}
  for i = 1, parts - 1 do
    sizes[i] = 1 + draw(left - (parts - i), i, ...)
    left = left - sizes[i]
  end
  sizes[parts] = left
  return sizes
end

local function cut(graph, node, config, each, aim)
  local seed, id = config.seed, node.id
  local mesh = meshes[each][draw(#meshes[each], seed, id, 1) + 1]
  for step, parts in ipairs(mesh) do
    local legal, aimed = {}, nil
    for _, place in ipairs(graph:choices(node)) do
      local is_aim = aim and place.input == aim.input and place.dim == aim.dim
      place.uneven = is_aim or draw(4, seed, id, step, 2) == 0 or nil
      place.sizes = draw(8, seed, id, step, 8) == 0
        and sizes_of(graph, node, place, parts, seed, id, step, 9) or nil
      if place.sizes and graph:refusal(node, place, parts) then place.sizes = nil end
      if not graph:refusal(node, place, parts) then
        legal[#legal + 1] = place
        aimed = aimed or is_aim and place
      end
    end
    if aimed or #legal > 0 and draw(10, seed, id, step, 3) > 0 then
      local place = aimed or legal[draw(#legal, seed, id, step, 4) + 1]
      graph:partition(node, place, parts)
      M.note(node, place)
    else
      graph:replicate(node, parts)
    end
  end
end

-- Stages that start at drawn operators; each has equally many devices.
local function set_stages(graph, config, devices)
  local count, nodes = config.stages or 1, graph:nodes()
  if count == 1 then return end
  local each, first, lists = devices / count, {}, {}
  for s = 1, count do
    lists[s] = {}
    for i = 1, each do lists[s][i] = (s - 1) * each + i - 1 end
    if s > 1 then
      local room = #nodes / count
      first[s - 1] = nodes[math.floor((s - 1) * room) + draw(math.max(1, math.floor(room / 2)),
        config.seed, s, 5) + 1]
    end
  end
  graph:stage(first, lists)
  graph:schedule(config.schedule or '1f1b')
end

-- A run of operators of one stage, made again in backward.
local function set_recompute(graph, config)
  local nodes = graph:nodes()
  local first = draw(#nodes, config.seed, 6)
  local group = {}
  for i = first + 1, math.min(#nodes, first + 1 + draw(8, config.seed, 7)) do
    if graph:stage_of(nodes[i]) == graph:stage_of(nodes[first + 1]) then
      group[#group + 1] = nodes[i]
    end
  end
  graph:recompute(group)
end

local function policy(_, graph, cfg)
  local config = cfg.pas_config
  local kept
  if config.keep then
    kept = {}
    for _, id in ipairs(config.keep) do kept[id] = true end
  end
  local aims = {}
  for _, aim in ipairs(config.aims or {}) do aims[aim.id] = aim end
  set_stages(graph, config, cfg.plan_ngpus)
  M.reset(graph:nodes())
  for _, node in ipairs(graph:nodes()) do
    local each = #graph:stage_devices(graph:stage_of(node))
    if each > 1 and (not kept or kept[node.id]) then
      cut(graph, node, config, each, aims[node.id])
    end
  end
  if config.recompute then set_recompute(graph, config) end
  graph:replicate_rest()
end

return setmetatable(M, { __call = policy })
