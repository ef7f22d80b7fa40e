--- Whole weights and optimizer states from the parts that several ranks hold. All are collectives:
--- every rank calls them in the same order.
local base = require 'nnscaler._C.base'
local groups = require 'nnscaler.runtime.groups'
local tensor = require 'nnscaler.tensor'

local M = {}

-- Leaves of the model in its order: { name, kind }.
local function leaves(t)
  local list = {}
  for _, entry in ipairs(t.model:named_parameters()) do
    list[#list + 1] = { name = entry.name, kind = 'parameter' }
  end
  for _, entry in ipairs(t.model:named_buffers()) do
    if entry.persistent ~= false then list[#list + 1] = { name = entry.name, kind = 'buffer' } end
  end
  return list
end

local function own_parts(t)
  local own = {}
  for _, list in ipairs { t.engine.parameters, t.engine.buffers } do
    for _, leaf in ipairs(list) do own[leaf.name] = leaf.data end
  end
  return own
end

--- Returns the whole weights as checkpoints take them.
---@param t nnscaler.Trainer
---@return { name: string, data: nnscaler.Tensor, kind: string }[]
function M.weights(t)
  local list, own = leaves(t), own_parts(t)
  for _, leaf in ipairs(list) do leaf.data = t.sharing:full(leaf.name, own[leaf.name]) end
  return list
end

--- Returns the whole state of the optimizer.
---@param t nnscaler.Trainer
---@return { counts: table<string, integer>, tensors: table[] }
function M.optimizer(t)
  local state, own, names = t.optimizer:state(), {}, {}
  for i, entry in ipairs(state.tensors) do
    own[entry.parameter .. '/' .. entry.name] = entry.data
    names[i] = { entry.parameter, entry.name }
  end
  local mine = base.json_encode { names = names, counts = state.counts }
  local counts, known = {}, {}
  for _, text in ipairs(groups.group(t.sharing.everybody):exchange(mine)) do
    local theirs = base.json_decode(text)
    for _, name in ipairs(theirs.names or {}) do
      known[name[1]] = known[name[1]] or {}
      known[name[1]][name[2]] = true
    end
    for _, leaf in ipairs(leaves(t)) do
      counts[leaf.name] = counts[leaf.name] or (theirs.counts or {})[leaf.name]
    end
  end
  local tensors = {}
  for _, leaf in ipairs(leaves(t)) do
    for _, name in ipairs(require('nnscaler.sorted').sorted_keys(known[leaf.name] or {})) do
      tensors[#tensors + 1] = { parameter = leaf.name, name = name,
        data = t.sharing:full(leaf.name, own[leaf.name .. '/' .. name]) }
    end
  end
  return { counts = counts, tensors = tensors }
end

--- Gives this rank its parts of whole weights.
---@param t nnscaler.Trainer
---@param weights { name: string, data: nnscaler.Tensor }[]
function M.scatter(t, weights)
  local own = own_parts(t)
  tensor.no_grad(function()
    for _, leaf in ipairs(weights) do
      local part = own[leaf.name]
      if part then part:copy_(t.sharing:part(leaf.name, leaf.data)) end
    end
  end)
end

--- Returns this rank's parts of a whole optimizer state.
---@param t nnscaler.Trainer
---@param tensors { parameter: string, name: string, data: nnscaler.Tensor }[]
---@return table[]
function M.own_state(t, tensors)
  local own, list = own_parts(t), {}
  for _, entry in ipairs(tensors) do
    if own[entry.parameter] then
      list[#list + 1] = { parameter = entry.parameter, name = entry.name,
        data = t.sharing:part(entry.parameter, entry.data) }
    end
  end
  return list
end

return M
