--- What a kind of optimizer keeps of each parameter, as it declares it: known before anything runs.
local fail = require 'nnscaler.fail'
local precision = require 'nnscaler.precision'

local M = {}

--- Bytes of an element.
M.width = { float64 = 8, float32 = 4, bfloat16 = 2, float16 = 2, int64 = 8, int32 = 4,
  int16 = 2, int8 = 1, uint8 = 1, bool = 1, complex64 = 8, complex128 = 16 }

---@class nnscaler.Slot of every parameter of a group
---@field name string
---@field dtype string|nil nil: the weight's, or its master's
---@field shape nil|fun(shape: integer[]): integer[]|nil from the weight's, nil where a weight of
---  this shape has no such slot; without the function: the same

--- The slots that a kind with these options keeps of a weight; none of a kind that keeps its own
--- state. Of a 16-bit weight the first is `master`, the weight in float32, which is what the kind
--- updates, unless the options say master = false.
---@param kind table
---@param options table
---@param weight { shape: integer[], dtype: string }
---@return nnscaler.Slot[]
function M.of(kind, options, weight)
  local list = {}
  if not kind.slots then return list end
  local master = options.master and precision.gradient_dtype(weight.dtype)
  if master == weight.dtype then master = nil end
  if master then list[1] = { name = 'master', dtype = master } end
  for _, slot in ipairs(kind.slots(options)) do
    if type(slot) == 'string' then slot = { name = slot } end
    if not slot.shape or slot.shape(weight.shape) then
      list[#list + 1] = { name = slot.name, shape = slot.shape, dtype = slot.dtype or master }
    end
  end
  return list
end

--- What profiles call an optimizer of a job; a kind that is no name is one of its own.
---@param optimizer { type: any }|nil
---@return string|nil
function M.name(optimizer)
  if not optimizer then return nil end
  return type(optimizer.type) == 'string' and optimizer.type or 'a kind of its own'
end

--- A slot before the first update: a master is the weight, others are zeros.
---@param slot nnscaler.Slot
---@param weight nnscaler.Tensor
---@return nnscaler.Tensor
function M.first(slot, weight)
  if slot.name == 'master' then return weight:detach():to(slot.dtype) end
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

--- Bytes of all that an optimizer will keep.
---@param optimizer nnscaler.Optimizer
---@return integer
function M.bytes(optimizer)
  local total = 0
  for _, slot in ipairs(optimizer:declared()) do
    total = total + M.tensor_bytes(slot.shape, slot.dtype)
  end
  return total
end

--- Bytes that an update of these parameters takes for a while, as their kinds declare it:
--- `workspace(options, weights)` of a kind says it of weights { shape, dtype } that it updates in
--- one call, in the dtype in which it does.
---@param optimizer nnscaler.Optimizer
---@param names string[]
---@return integer
function M.workspace(optimizer, names)
  local weights, most = {}, 0 -- by group
  for _, name in ipairs(names) do
    local slot = optimizer.by_name[name]
    if slot then
      local options = optimizer.options[slot.group]
      local dtype = options.master and precision.gradient_dtype(slot.dtype) or slot.dtype
      weights[slot.group] = weights[slot.group] or {}
      table.insert(weights[slot.group], { shape = slot.data.shape, dtype = dtype })
    end
  end
  for group, list in next, weights do
    local kind = optimizer.kinds[group]
    if kind.workspace then
      most = math.max(most, kind.workspace(optimizer.options[group], list))
    end
  end
  return most
end

--- Bytes of a tensor.
---@param shape integer[]
---@param dtype string
---@return integer
function M.tensor_bytes(shape, dtype)
  local bytes = M.width[dtype]
  for _, size in ipairs(shape) do bytes = bytes * size end
  return bytes
end

-- Whether it is less than the weight.
local function is_part(slice)
  return slice ~= nil and table.concat(slice.shape, ' ') ~= table.concat(slice.whole, ' ')
end

--- Refuses an optimizer on parts of weights that does more with them than element by element.
---@param optimizer nnscaler.Optimizer
---@param slices table<string, nnscaler.Slice> that it updates on this rank, by name
function M.check_parts(optimizer, slices)
  for _, slot in ipairs(optimizer.slots) do
    local cut, kind = is_part(slices[slot.name]), optimizer:kind_of(slot)
    if cut and kind.whole then
      fail('usage', 'optim.slots', ("the rank holds a part of '%s', and %s updates whole weights")
        :format(slot.name, kind.name or 'its optimizer'), 'with compute_config.use_zero up to 2 '
        .. 'and a policy that does not cut it, it is whole (in a hand-written loop with '
        .. 'zero_param_level_sharding=true too); or '
        .. "give it to another optimizer: groups = { { match = '...', type = 'adamw' } }")
    end
    if cut and not kind.slots and not kind.elementwise then
      fail('usage', 'optim.slots', ("the rank holds a part of '%s', and the optimizer says neither "
        .. 'slots nor elementwise'):format(slot.name), 'a kind that updates each element by itself '
        .. 'says elementwise = true')
    end
  end
  for _, slot in ipairs(optimizer:declared()) do
    local slice = slices[slot.parameter]
    if is_part(slice) and table.concat(slot.shape, ' ') ~= table.concat(slice.shape, ' ') then
      fail('usage', 'optim.slots', ("the rank holds a part of '%s', whose slot '%s' has a shape of "
        .. 'its own'):format(slot.parameter, slot.name), 'use a policy that leaves weights whole')
    end
  end
end

return M
