--- Iteration in one order on every rank: the order of `pairs` differs between processes.

local M = {}

local rank = { number = 1, string = 2, boolean = 3 }

local function before(a, b)
  local ta, tb = type(a), type(b)
  if ta ~= tb then return rank[ta] < rank[tb] end
  if ta == 'boolean' then return a and not b end
  return a < b
end

--- Returns the keys of a table: numbers first, then strings, each in ascending order.
---@param t table with numbers, strings or booleans as keys
---@return any[]
function M.sorted_keys(t)
  local keys = {}
  for key in next, t do
    if not rank[type(key)] then
      error(('a %s key has no order; expected numbers, strings or booleans'):format(type(key)), 2)
    end
    keys[#keys + 1] = key
  end
  table.sort(keys, before)
  return keys
end

--- Iterates over key and value in the order of sorted_keys. The table may be changed meanwhile.
---@param t table
---@return fun(): any, any
function M.sorted_pairs(t)
  local keys, i = M.sorted_keys(t), 0
  return function()
    i = i + 1
    local key = keys[i]
    if key ~= nil then return key, t[key] end
  end
end

--- Returns a copy of a table with some fields of another value.
---@param values table|nil nil: an empty one
---@param changes table
---@return table
function M.with(values, changes)
  local out = {}
  for key, value in M.sorted_pairs(values or {}) do out[key] = value end
  for key, value in M.sorted_pairs(changes) do out[key] = value end
  return out
end

return M
