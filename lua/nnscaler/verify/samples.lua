--- Example calls of every operator of the table: what `nnscaler verify --op` and the tests feed to
--- the kernels. A family is a function that adds its rows; a row is named as in the table and holds
--- calls, each a list of arguments (keywords in a last table), `op` naming the overload.
local T = require 'nnscaler.tensor'

local M = {}

---@class nnscaler.verify.Maker draws tensors; all are float64 unless named otherwise
---@field f fun(...: integer): nnscaler.Tensor normal numbers
---@field pos fun(...: integer): nnscaler.Tensor numbers from 0.1 to 0.9
---@field f32 fun(...: integer): nnscaler.Tensor
---@field i fun(high: integer, ...: integer): nnscaler.Tensor integers from 0 below high
---@field b fun(...: integer): nnscaler.Tensor booleans

---Makes a source of random tensors.
---@param seed integer
---@return nnscaler.verify.Maker
function M.maker(seed)
  local generator = T.generator(seed)
  local m = { generator = generator }
  function m.f(...)
    return T.randn({ ... }, { dtype = 'float64', generator = generator })
  end
  function m.f32(...)
    return T.randn({ ... }, { dtype = 'float32', generator = generator })
  end
  function m.pos(...)
    return T.rand({ ... }, { dtype = 'float64', generator = generator }) * 0.8 + 0.1
  end
  function m.i(high, ...)
    return T.randint(0, high, { ... }, { generator = generator })
  end
  function m.b(...)
    return T.rand({ ... }, { generator = generator }):gt(0.5)
  end
  return m
end

M.families = { 'elementwise', 'reduce', 'shape', 'index', 'nn' }

---@class nnscaler.verify.Sample
---@field op string full name
---@field args table with their number in field n
---@field tolerance number? of split against whole
---@field refused boolean? the table says why the call cannot be traced
---@field types_only boolean? elements are undefined

---Returns the example calls of all rows by their name.
---@param seed integer
---@return table<string, nnscaler.verify.Sample[]>
function M.all(seed)
  local m = M.maker(seed)
  local rows = {}
  -- add(names, call, …): each call is a list of arguments, `op` names an overload, nils need `n`.
  local function add(names, ...)
    for name in names:gmatch '%S+' do
      local full = name:find '::' and name or 'aten::' .. name
      local list = rows[full] or {}
      rows[full] = list
      for k = 1, select('#', ...) do
        local call = select(k, ...)
        local args = { n = call.n or #call }
        for i = 1, args.n do args[i] = call[i] end
        local op = call.op and (call.op:find '::' and call.op or 'aten::' .. call.op) or full
        list[#list + 1] = { op = op, args = args, tolerance = call.tolerance,
          refused = call.refused, types_only = call.types_only }
      end
    end
  end
  for _, family in ipairs(M.families) do
    require('nnscaler.verify.samples_' .. family)(add, m)
  end
  return rows
end

return M
