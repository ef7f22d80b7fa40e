--- Example calls of every operator: what `nnscaler verify --op` and the tests feed to the kernels.
--- They stand in the operators' records (src/operators) as lists of arguments in Lua, keywords in a
--- last table; `op` names an overload, `n` the number of arguments where some are nil.
local C = require 'nnscaler._C.graph'
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

---@class nnscaler.verify.Example
---@field op string full name
---@field args table with their number in field n
---@field tolerance number? of split against whole
---@field refused boolean? the table says why the call cannot be traced
---@field types_only boolean? elements are undefined

-- What the examples of a record may name.
local function words(seed)
  local m = M.maker(seed)
  return {
    f = m.f, f32 = m.f32, pos = m.pos, i = m.i, b = m.b, generator = m.generator, T = T,
    aten = require('nnscaler.ops').aten, nnscaler = require('nnscaler.ops').nnscaler,
    complex = function(...) return T.complex(m.f(...), m.f(...)) end,
    ints = function(list) return T.tensor(list, { dtype = 'int64' }) end,
    -- The calls that `make` returns for each reduction of a loss: 0 none, 1 mean, 2 sum. `each(…)`
    -- draws a gradient of the result, whose shape without reduction is given.
    reductions = function(make)
      local calls = {}
      for reduction = 0, 2 do
        local function each(...)
          if reduction == 0 then return m.f(...) end
          return m.f()
        end
        for _, call in ipairs { make(reduction, each) } do calls[#calls + 1] = call end
      end
      return unpack(calls)
    end,
  }
end

-- The calls that a text lists, or returns where it has more to say.
local function read(text, name, seed)
  local chunk = loadstring('return ' .. text, '=' .. name) or assert(loadstring(text, '=' .. name))
  return { setfenv(chunk, words(seed))() }
end

---Returns the example calls of all operators by their name.
---@param seed integer
---@return table<string, nnscaler.verify.Example[]>
function M.all(seed)
  local rows = {}
  for _, row in ipairs(C.ops()) do
    local list = {}
    for _, text in ipairs(row.examples) do
      for _, call in ipairs(read(text, row.name, seed)) do
        local args = { n = call.n or #call }
        for k = 1, args.n do args[k] = call[k] end
        local op = call.op and (call.op:find '::' and call.op or 'aten::' .. call.op) or row.name
        list[#list + 1] = { op = op, args = args, tolerance = call.tolerance,
          refused = call.refused, types_only = call.types_only }
      end
    end
    if #list > 0 then rows[row.name] = list end
  end
  return rows
end

return M
