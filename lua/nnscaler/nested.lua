--- Nested tables of tensors and plain values as text, and back.
local sorted = require 'nnscaler.sorted'
local tensor = require 'nnscaler.tensor'

local M = {}

--- What JSON can hold of a value: tensors become their place in `tensors`, with shape and dtype.
---@param value any
---@param tensors nnscaler.Tensor[] gets them
---@return table
function M.encode(value, tensors)
  if tensor.is_tensor(value) then
    tensors[#tensors + 1] = value
    return { t = #tensors, shape = value.shape, dtype = value.dtype }
  elseif type(value) == 'table' then
    local keys, items = {}, {}
    for i, key in ipairs(sorted.sorted_keys(value)) do
      keys[i], items[i] = key, M.encode(value[key], tensors)
    end
    return { keys = keys, items = items }
  end
  return { v = value }
end

--- The value again; tensors that `tensors` lacks are made.
---@param code table
---@param tensors nnscaler.Tensor[]
---@param make fun(shape: integer[], options: table): nnscaler.Tensor
---@return any
function M.decode(code, tensors, make)
  if code.t then
    tensors[code.t] = tensors[code.t] or make(code.shape, { dtype = code.dtype })
    return tensors[code.t]
  elseif code.items then
    local value = {}
    for i, key in ipairs(code.keys or {}) do
      value[key] = M.decode(code.items[i], tensors, make)
    end
    return value
  end
  return code.v
end

return M
