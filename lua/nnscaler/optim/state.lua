--- State of an optimizer to and from a checkpoint, by parameter name: counts[parameter] is the
--- number of its updates, tensors a list of { parameter =, name = 'exp_avg', data = }.
local fail = require 'nnscaler.fail'
local slots = require 'nnscaler.optim.slots'
local sorted = require 'nnscaler.sorted'

local M = {}

---@param optimizer nnscaler.Optimizer
---@return { counts: table<string, integer>, tensors: table[] }
function M.export(optimizer)
  local counts, tensors = {}, {}
  for _, slot in ipairs(optimizer.slots) do
    counts[slot.name] = slot.count
    for name, data in sorted.sorted_pairs(slot.tensors) do
      tensors[#tensors + 1] = { parameter = slot.name, name = name, data = data }
    end
  end
  return { counts = counts, tensors = tensors }
end

local function show(shape) return '[' .. table.concat(shape, ', ') .. ']' end

-- Shape and dtype that a state has; those of the weight where the kind does not know its name.
local function type_of(optimizer, slot, name)
  for _, declared in ipairs(optimizer:slots_of(slot)) do
    if declared.name == name then return slots.type_of(declared, slot.data) end
  end
  return slot.data.shape, slot.data.dtype
end

-- Sorts the saved tensors under their parameters, or says what does not belong.
local function sort_tensors(optimizer, saved)
  local found = {}
  for _, entry in ipairs(saved.tensors) do
    local slot = optimizer.by_name[entry.parameter]
    if not slot then
      fail('state', 'optim.load', ("state '%s' of '%s' belongs to no trainable parameter")
        :format(entry.name, entry.parameter))
    end
    local shape, dtype = type_of(optimizer, slot, entry.name)
    if show(entry.data.shape) ~= show(shape) then
      fail('state', 'optim.load', ("state '%s' of '%s' has shape %s; expected %s"):format(
        entry.name, entry.parameter, show(entry.data.shape), show(shape)))
    end
    if entry.data.dtype ~= dtype then
      fail('state', 'optim.load', ("state '%s' of '%s' is %s; expected %s"):format(
        entry.name, entry.parameter, entry.data.dtype, dtype))
    end
    found[slot.name] = found[slot.name] or {}
    found[slot.name][entry.name] = entry.data
  end
  return found
end

---@param optimizer nnscaler.Optimizer
---@param saved { counts: table<string, integer>, tensors: table[] }
function M.import(optimizer, saved)
  local found = sort_tensors(optimizer, saved)
  for _, slot in ipairs(optimizer.slots) do
    local count = saved.counts[slot.name]
    if not count then
      fail('state', 'optim.load', ("no state of parameter '%s'"):format(slot.name))
    end
    local list = count > 0 and optimizer:slots_of(slot) or {}
    for _, declared in ipairs(list) do
      if not (found[slot.name] and found[slot.name][declared.name]) then
        fail('state', 'optim.load', ("state '%s' of '%s' is missing"):format(declared.name,
          slot.name))
      end
    end
  end
  for _, slot in ipairs(optimizer.slots) do
    slot.count, slot.tensors = saved.counts[slot.name], {}
    for name, data in sorted.sorted_pairs(found[slot.name] or {}) do
      slot.tensors[name] = optimizer:home(data)
    end
  end
end

return M
