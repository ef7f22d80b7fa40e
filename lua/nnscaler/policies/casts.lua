--- Casts of weights, as autocast makes them. A policy says how a layer is cut, not how the cast in
--- front of its weight is: a cast of which it says nothing is cut as its users read it, so that the
--- weight rests as it would without a cast.
local M = {}

--- Finds the casts of a graph: of a value that is made from a parameter alone and differs in
--- nothing but its dtype, the parameter.
---@param nodes nnscaler.PolicyNode[]
---@param values table[]
---@return table<integer, integer> parameter by id of the cast value
function M.find(nodes, values)
  local of = {}
  for _, node in ipairs(nodes) do
    local from, to = values[(node.inputs[1] or -1) + 1], values[(node.outputs[1] or -1) + 1]
    if #node.inputs == 1 and #node.outputs == 1 and from and from.role == 'parameter'
      and to.dtype ~= from.dtype and table.concat(to.shape, ' ') == table.concat(from.shape, ' ')
    then
      of[node.outputs[1]] = node.inputs[1]
    end
  end
  return of
end

--- Notes what a step of a node's cut does to those of its operands that are casts.
---@param graph table the policy's graph
---@param node nnscaler.PolicyNode
---@param split { inputs: (integer|string)[] }|nil of the step; nil: no operand is cut
---@param step { parts: integer, uneven?: boolean, sizes?: integer[] }
function M.note(graph, node, split, step)
  for k, id in ipairs(node.inputs) do
    if graph.casts[id] then
      local uses = graph.uses
      uses[id] = uses[id] or {}
      uses[id][node.id] = uses[id][node.id] or {}
      local how = split and split.inputs[k]
      table.insert(uses[id][node.id], { dim = type(how) == 'number' and how or nil,
        parts = step.parts, uneven = step.uneven, sizes = step.sizes })
    end
  end
end

local function text_of(steps)
  local out = {}
  for i, step in ipairs(steps or {}) do
    out[i] = ('%s/%d%s%s'):format(tostring(step.dim), step.parts, step.uneven and 'u' or '',
      step.sizes and table.concat(step.sizes, ',') or '')
  end
  return table.concat(out, ' ')
end

-- The steps by which all users read a cast; nil where they differ, or one lies in another stage.
local function steps_of(graph, node)
  local uses, steps = graph.uses[node.outputs[1]] or {}, nil
  for _, user in ipairs(graph:consumers(node)) do
    local own = uses[user.id]
    if not own or graph:stage_of(user) ~= graph:stage_of(node)
      or steps and text_of(steps) ~= text_of(own) then
      return nil
    end
    steps = own
  end
  return steps
end

--- Cuts the casts of which the policy has said nothing.
---@param graph table
function M.follow(graph)
  for _, node in ipairs(graph:nodes()) do
    local steps = graph.casts[node.outputs[1] or -1] and not graph:planned(node)
      and steps_of(graph, node)
    for _, step in ipairs(steps or {}) do
      if step.dim then
        graph:partition(node, { input = 0, dim = step.dim, uneven = step.uneven,
          sizes = step.sizes }, step.parts)
      else
        graph:replicate(node, step.parts)
      end
    end
  end
end

return M
