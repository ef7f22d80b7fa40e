--- What a kind of optimizer keeps of each parameter, as it declares it: known before anything runs.
local M = {}

---@class nnscaler.Slot of every parameter of a group
---@field name string
---@field dtype string|nil nil: the weight's
---@field shape nil|fun(shape: integer[]): integer[] from the weight's; nil: the same

--- The slots of a kind with these options; none of one that keeps its own state.
---@param kind table
---@param options table
---@return nnscaler.Slot[]
function M.of(kind, options)
  local list = {}
  for i, slot in ipairs(kind.slots and kind.slots(options) or {}) do
    list[i] = type(slot) == 'string' and { name = slot } or slot
  end
  return list
end

--- A slot before the first update.
---@param slot nnscaler.Slot
---@param weight nnscaler.Tensor
---@return nnscaler.Tensor
function M.zeros(slot, weight)
  if not slot.shape then
    return slot.dtype and weight:zeros_like { dtype = slot.dtype } or weight:zeros_like()
  end
  return require('nnscaler.tensor').zeros(slot.shape(weight.shape),
    { dtype = slot.dtype or weight.dtype, device = weight.device })
end

--- Shape and dtype of a slot.
---@param slot nnscaler.Slot
---@param weight { shape: integer[], dtype: string }
---@return integer[] shape, string dtype
function M.type_of(slot, weight)
  return slot.shape and slot.shape(weight.shape) or weight.shape, slot.dtype or weight.dtype
end

return M
