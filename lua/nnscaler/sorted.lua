--- Walks a table in the order of its keys, the same in every process (`pairs` differs between
--- processes: nothing that ranks must agree on may depend on it).
local M = {}

local function before(a, b)
  local ta, tb = type(a), type(b)
  if ta ~= tb then return ta < tb end -- 'number' < 'string'
  return a < b
end

---@param t table keys are numbers and strings
---@return table keys list of the keys, numbers first
function M.sorted_keys(t)
  local keys = {}
  for key in next, t do keys[#keys + 1] = key end
  table.sort(keys, before)
  return keys
end

---@param t table
---@return fun(): any, any iterator over key, value
function M.sorted_pairs(t)
  local keys, i = M.sorted_keys(t), 0
  return function()
    i = i + 1
    return keys[i], t[keys[i]]
  end
end

return M
