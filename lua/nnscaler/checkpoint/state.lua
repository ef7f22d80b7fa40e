--- The trainer's state as JSON that comes back exactly: every double to the last bit, also those
--- JSON has no word for (written as { "$number": "inf" }).
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local sorted = require 'nnscaler.sorted'

local M = {}

local function number(x)
  if x ~= x then return { ['$number'] = 'nan' } end
  if x == math.huge then return { ['$number'] = 'inf' } end
  if x == -math.huge then return { ['$number'] = '-inf' } end
  if x == 0 and 1 / x < 0 then return { ['$number'] = '-0' } end
  return x
end

local words = { nan = 0 / 0, inf = math.huge, ['-inf'] = -math.huge, ['-0'] = -0.0 }

local function plain(value, place)
  local kind = type(value)
  if kind == 'number' then return number(value) end
  if kind == 'string' or kind == 'boolean' then return value end
  if kind ~= 'table' then
    fail('state', 'checkpoint.state', ('%s is a %s; expected numbers, strings, booleans and tables')
      :format(place, kind), 'save tensors as weights, or as tensors of the optimizer')
  end
  local out, length = {}, #value
  for key, item in sorted.sorted_pairs(value) do
    local whole = type(key) == 'number' and key >= 1 and key <= length and key % 1 == 0
    if not whole and (type(key) ~= 'string' or length > 0) then
      fail('state', 'checkpoint.state', ("%s has the key %s beside %d list items; expected a list "
        .. 'or string keys'):format(place, tostring(key), length))
    end
    out[key] = plain(item, ('%s.%s'):format(place, tostring(key)))
  end
  return out
end

local function restore(value)
  if type(value) ~= 'table' then return value end
  local word = value['$number']
  if word then return words[word] end
  for key, item in sorted.sorted_pairs(value) do value[key] = restore(item) end
  return value
end

--- Returns the text of a state; a function or tensor in it is an error that names its place.
---@param state table
---@return string
function M.encode(state) return base.json_encode(plain(state, 'state'), 1) end

--- Returns the state of a text.
---@param text string
---@return table
function M.decode(text) return restore(base.json_decode(text)) end

return M
