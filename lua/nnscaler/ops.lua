--- Every registered operator by name: `ops.aten.matmul(x, y)`, `ops.aten['add.Tensor'](x, y)`,
--- `ops.nnscaler.dropout(…)`. The overload is picked from the arguments; a last table with string
--- keys holds keyword arguments. Each entry is a plain C function: keep it in a local.
local C = require 'nnscaler._C.tensor'

local function namespace(name)
  return setmetatable({}, {
    __index = function(operators, operator)
      local call = C.operator(name .. '::' .. operator)
      rawset(operators, operator, call)
      return call
    end,
  })
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
