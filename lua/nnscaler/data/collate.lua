--- Makes a micro-batch of samples: nested tables keep their form, tensors are stacked along a new
--- dimension 0.
local fail = require 'nnscaler.fail'
local ops = require 'nnscaler.ops'
local sorted = require 'nnscaler.sorted'

local function show(shape) return '[' .. table.concat(shape, ', ') .. ']' end

local function same(a, b)
  if #a ~= #b then return false end
  for i, size in ipairs(a) do
    if b[i] ~= size then return false end
  end
  return true
end

local function stack(values, place)
  local first = values[1]
  for i, value in ipairs(values) do
    if type(value) ~= 'userdata' then
      fail('data', 'data.collate', ('%s of sample %d of the batch is a %s, of the first a tensor')
        :format(place, i - 1, type(value)))
    end
    if not same(first.shape, value.shape) or first.dtype ~= value.dtype then
      fail('data', 'data.collate', ('%s of sample %d of the batch is %s%s, of the first %s%s; '
        .. 'expected equal shapes and dtypes'):format(place, i - 1, value.dtype, show(value.shape),
        first.dtype, show(first.shape)), 'pad the samples, or give the loader its own collate')
    end
  end
  return ops.aten.stack(values, 0)
end

local function collate(values, place)
  local first = values[1]
  if type(first) == 'userdata' then return stack(values, place) end
  if type(first) ~= 'table' then
    fail('data', 'data.collate', ('%s is a %s; expected tensors in nested tables'):format(place,
      type(first)), 'wrap it: nnscaler.tensor.tensor(value)')
  end
  local keys = sorted.sorted_keys(first)
  for i, value in ipairs(values) do
    if type(value) ~= 'table' or #sorted.sorted_keys(value) ~= #keys then
      fail('data', 'data.collate', ('%s of sample %d of the batch has not the fields of the first: '
        .. '%s'):format(place, i - 1, table.concat(keys, ', ')))
    end
  end
  local out = {}
  for _, key in ipairs(keys) do
    local column = {}
    for i, value in ipairs(values) do
      if value[key] == nil then
        fail('data', 'data.collate', ("%s of sample %d of the batch lacks the field '%s'"):format(
          place, i - 1, tostring(key)))
      end
      column[i] = value[key]
    end
    out[key] = collate(column, ("%s['%s']"):format(place, tostring(key)))
  end
  return out
end

--- Returns the micro-batch of a list of samples.
---@param samples any[] at least one; nested tables of tensors, all of one form
---@return any
return function(samples) return collate(samples, 'sample') end
