--- The calls that test derivative rules, by rule. A family is a function that adds its rows; a row
--- is named as the rule and holds calls: lists of arguments (keywords in a last table; n counts
--- them where some are nil) with
---   op         full name, where the rule's does not say the overload ('*.dim': of this rule)
---   fixed      operands (counted among the tensors) without gradients, beside integers
---   outputs    number of results, each subset of which shall reach the loss
---   buffers    operands that are buffers of the model
---   forms      how gradients come (harness.lua); all unless told
---   fallback   the rule leaves the call to autograd
---   tolerance  1e-11 unless told
---   reference  stands in for the operator where it has no such dtype (harness.lua)
---   float32    the operator has no other dtype
local T = require 'nnscaler.tensor'

local M = {}

M.families = { 'elementwise', 'reduce', 'shape', 'index', 'nn', 'spatial', 'loss' }

-- Draws tensors, and the sizes A, B, C that calls leave open.
local function maker(seed)
  local m = require('nnscaler.verify.examples').maker(seed)
  local generator = T.generator(seed + 100)
  local function size() return T.randint(2, 6, {}, { generator = generator }):item() end
  m.A, m.B, m.C = size(), size(), size()
  function m.t(...) return (m.i(3, ...) - 1):to 'float64' end
  function m.z(...) return T.complex(m.f(...), m.f(...)) end
  -- True in the first column: a mask with it hides no row.
  function m.first(rows, columns) return T.arange(columns):eq(0):expand { rows, columns } end
  return m
end

-- Draws from a generator, which a trace refuses.
local function has_generator(call)
  local named = call.args[#call.args]
  return type(named) == 'table' and named.generator ~= nil
end

-- The example calls of `verify` for operators whose results never have gradients, as far as they
-- take a tensor that could have one. Autograd's may be zeros.
local function add_constants(rows, seed)
  local examples = require('nnscaler.verify.examples').all(seed)
  local harness = require 'tests.lua.derivative.harness'
  for _, rule in ipairs(require('nnscaler._C.lower').rules()) do
    if rule.kind == 'constant' and not rows[rule.op] then
      local list = {}
      for _, call in ipairs(examples[rule.op] or {}) do
        local usable = not call.types_only and not has_generator(call)
        if usable and #harness.candidates(call) > 0 then
          list[#list + 1] = { op = call.op, args = call.args, constant = true }
        end
      end
      rows[rule.op] = #list > 0 and list or nil
    end
  end
end

---@param seed integer
---@param constants? boolean with those of operators whose results never have gradients
---@return table<string, table[]>
function M.all(seed, constants)
  local m = maker(seed)
  local rows = {}
  local function full(name) return name:find '::' and name or 'aten::' .. name end
  local function add(names, ...)
    for name in names:gmatch '%S+' do
      local rule = full(name)
      rows[rule] = rows[rule] or {}
      for k = 1, select('#', ...) do
        local call = select(k, ...)
        local args = { n = call.n or #call }
        for i = 1, args.n do args[i] = call[i] end
        local op = call.op and full((call.op:gsub('%*', name))) or rule
        rows[rule][#rows[rule] + 1] = { op = op, args = args, fixed = call.fixed,
          outputs = call.outputs, buffers = call.buffers, forms = call.forms,
          fallback = call.fallback, tolerance = call.tolerance, reference = call.reference,
          float32 = call.float32 }
      end
    end
  end
  for _, family in ipairs(M.families) do
    require('tests.lua.derivative.' .. family)(add, m)
  end
  if constants then add_constants(rows, seed) end
  return rows
end

return M
