--- Weights that files hold in another shape than the model does (nn.FusedLinear): the same elements
--- in the same order, so that they move to and from other programs as they are.
local sorted = require 'nnscaler.sorted'

local M = {}

local function same(a, b) return table.concat(a, ',') == table.concat(b, ',') end

-- Shapes of such weights by name: { file =, model = }.
local function shapes_of(model)
  local shapes = {}
  for _, entry in ipairs(model:named_parameters()) do
    if entry.file_shape then
      shapes[entry.name] = { file = entry.file_shape, model = entry.param.shape }
    end
  end
  return shapes
end

--- Weights, or states of an optimizer, as files hold them; the tensors share their memory.
---@param model nnscaler.nn.Module
---@param list { name: string, parameter?: string, data: nnscaler.Tensor }[]
---@return table[]
function M.to_file(model, list)
  local shapes, out = shapes_of(model), {}
  for i, item in ipairs(list) do
    local shape = shapes[item.parameter or item.name]
    if shape and same(item.data.shape, shape.model) then
      local copy = {}
      for key, value in sorted.sorted_pairs(item) do copy[key] = value end
      copy.data = item.data:detach():view(shape.file)
      item = copy
    end
    out[i] = item
  end
  return out
end

return M
