--- Context parallelism: cuts a model of texts along their length. From the inputs on, each operator
--- is cut where its operands are; one that cannot be gets them whole. Weights stay whole.
---
--- Causal attention either sends keys and values round the devices ('ring'), or is cut by heads
--- ('all_to_all', Jacobs 2023): then queries, keys and values change from cut texts to cut heads,
--- and results back.
local fail = require 'nnscaler.fail'

local M = {}

local AREA = 'policies.megatron'

-- Calls f with each attention whose text may be cut: the place of its text, and its length.
local function each_text(graph, f)
  for _, node in ipairs(graph:nodes()) do
    if node.kind == 'attention' then
      local query = graph.values[node.inputs[1] + 1].shape
      local text = { input = 0, dim = #query - 2, uneven = true }
      local split = graph:split_of(node, text, 1)
      if split and split.inputs[2] == text.dim then f(node, text, query[#query - 1]) end
    end
  end
end

-- Where the attention is cut instead along its heads.
local function heads_of(graph, node, text, parts)
  local place = { input = 0, dim = text.dim - 1 }
  local why = graph:refusal(node, place, parts)
  if why then
    fail('plan', AREA, ("context_attention='all_to_all': the heads of %s cannot be shared out over "
      .. '%d devices: %s'):format(node.module, parts, why),
      "context_attention='ring' needs no heads")
  end
  return place
end

-- Dimension of an input [batch, …] of the model that is as long as the texts.
local function along(shape, length)
  for d = 2, #shape do
    if shape[d] == length then return d - 1 end
  end
end

-- How a node whose operands in `cut` (value id → dimension) are cut is cut itself; nil: not at all.
local function follow(graph, node, cut, parts)
  for i, id in ipairs(node.inputs) do
    local where = cut[id] and { input = i - 1, dim = cut[id], uneven = true }
    if where and not graph:refusal(node, where, parts) then
      local split = graph:split_of(node, where, 1)
      local fits = true
      for k, other in ipairs(node.inputs) do
        local clash = cut[other] and split.inputs[k] ~= cut[other]
        -- Queries of attention without an order of the text may be cut alone.
        fits = fits and (not clash or node.kind == 'attention')
      end
      if fits then return where, split end
    end
  end
end

--- Finds the cuts of the operators of a graph into `parts` of its texts.
---@param graph table handle of the policy
---@param parts integer
---@param how string 'ring' or 'all_to_all'
---@return table<integer, table> places by node id
function M.places(graph, parts, how)
  local length
  local heads, texts = {}, {}
  each_text(graph, function(node, text, size)
    length = length or size
    texts[node.id] = text
    if how == 'all_to_all' then heads[node.id] = heads_of(graph, node, text, parts) end
  end)
  if not length then
    fail('plan', AREA, ('context_parallel=%d: the model has no causal attention of a text to '
      .. 'itself'):format(parts), 'context_parallel=1')
  end
  if length < parts then
    fail('plan', AREA, ('context_parallel=%d: texts of %d tokens'):format(parts, length),
      'choose longer texts, or fewer parts')
  end
  local cut, places = {}, {}
  for id, value in ipairs(graph.values) do
    if value.role == 'input' then cut[id - 1] = along(value.shape, length) end
  end
  for _, node in ipairs(graph:nodes()) do
    local where, split = follow(graph, node, cut, parts)
    if where then
      places[node.id] = texts[node.id] and heads[node.id] or where
      for k, id in ipairs(node.outputs) do
        if type(split.outputs[k]) == 'number' then cut[id] = split.outputs[k] end
      end
    end
  end
  each_text(graph, function(node)
    if not places[node.id] then
      fail('plan', AREA, ('context_parallel=%d: %s stays whole, since what it reads cannot be cut '
        .. 'into texts of their own from the inputs on'):format(parts, node.module),
        'inputs are [batch, length, …]')
    end
  end)
  return places
end

return M
