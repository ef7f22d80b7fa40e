--- Every registered operator by name: `ops.aten.matmul(x, y)`, `ops.aten['add.Tensor'](x, y)`,
--- `ops.nnscaler.dropout(…)`. The overload is picked from the arguments; a last table with string
--- keys holds keyword arguments. Each entry is a plain C function: keep it in a local; a few random
--- operators of ATen are Lua functions (drawn.lua).
local C = require 'nnscaler._C.tensor'
local drawn = require 'nnscaler.drawn'

local function namespace(name)
  local operators = setmetatable({}, {
    __index = function(known, operator)
      local call = C.operator(name .. '::' .. operator)
      rawset(known, operator, call)
      return call
    end,
  })
  if name == 'aten' then
    for operator, call in next, drawn(operators) do
      local hidden = C.operator('aten::' .. operator)
      rawset(operators, operator, function(...)
        local options = select('#', ...) > 0 and select(-1, ...) or nil
        if type(options) == 'table' and options.generator then return hidden(...) end
        return call(...)
      end)
    end
  end
  return operators
end

---@class nnscaler.ops
---@field aten table<string, fun(...): any>
---@field nnscaler table<string, fun(...): any>
local M = setmetatable({}, {
  __index = function(namespaces, name)
    local operators = namespace(name)
    rawset(namespaces, name, operators)
    return operators
  end,
})

return M
