--- Operators of your own. A composite is a Lua function over tensors that a graph holds as one
--- node, with an annotation that says how it may be split; its derivative follows from its body, or
--- from a function `backward` that writes the same out:
---
---   local swiglu = nnscaler.register_op('mylib::swiglu', {
---     annotation = 'n k+, h k+, h k+ -> n h',
---     body = function(x, gate, up) return F.silu(F.linear(x, gate)) * F.linear(x, up) end,
---   })
---
--- Without a body it is an operator of a shared library (`library`: its path, opened here), called
--- through LibTorch's dispatcher; its derivative is LibTorch's own, run again in backward.
local C = require 'nnscaler._C.trace'
local fail = require 'nnscaler.fail'
local ops = require 'nnscaler.ops'
local sorted_keys = require('nnscaler.sorted').sorted_keys

local M = { specs = {} }

---@class nnscaler.OperatorSpec
---@field annotation? string|string[]|fun(...): string|string[] how it may be split; a function gets
---  { shape, dtype } of each tensor, and the plain arguments. Without: never split.
---@field body? fun(...): ... of a composite: pure, over its arguments alone
---@field backward? fun(...): ... of a composite: the same derivative as the body's, written out. It
---  gets the gradients of the results, the body's arguments and the results, and returns a gradient
---  per tensor argument in order, or nil. Without: it follows from the body.
---@field args? string[] names of the body's arguments; by default those it is written with
---@field rules? table[] transform rules { input, dim, inputs = { 'R'|'V'|'D0', … }, outputs,
---  modify = fun(arguments, parts, part): table of plain arguments to change }
---@field library? string path of a shared library
---@field flops? fun(...): number floating point operations of a call; a function gets what
---  `annotation` gets. By default one per element of the results.
---@field kind? string what a policy takes it for: 'linear', 'embedding', 'class_loss', 'sum',
---  'attention', 'experts'
---@field infer? fun(...): { shape: integer[], dtype: string } … of a library's operator whose
---  annotation does not tell the shapes of its results
---@field inputs? fun(generator): any[] arguments to verify it with, in float64

local known = { annotation = true, body = true, args = true, rules = true, library = true,
  infer = true, inputs = true, flops = true, kind = true, backward = true }

local function refuse(name, message, hint)
  fail('usage', 'register_op', ('%s: %s'):format(tostring(name), message), hint)
end

local function names_of(name, spec)
  if spec.args then return spec.args end
  local names, i = {}, 1
  local info = debug.getinfo(spec.body, 'u')
  if info.isvararg then refuse(name, 'its body takes ...; expected named arguments, or `args`') end
  while i <= info.nparams do
    names[i] = debug.getlocal(spec.body, i)
    i = i + 1
  end
  return names
end

local function check(name, spec)
  if type(name) ~= 'string' or type(spec) ~= 'table' then
    refuse(name, "expected a name as 'library::operator' and a table")
  end
  for _, key in ipairs(sorted_keys(spec)) do
    if not known[key] then
      refuse(name, ("unknown key '%s'"):format(key), 'keys are '
        .. table.concat(sorted_keys(known), ', '))
    end
  end
  if spec.body ~= nil and type(spec.body) ~= 'function' then
    refuse(name, ('body is a %s; expected a function'):format(type(spec.body)))
  end
  if spec.backward ~= nil and type(spec.backward) ~= 'function' then
    refuse(name, ('backward is a %s; expected a function'):format(type(spec.backward)))
  end
  if spec.backward and not spec.body then
    refuse(name, 'has a backward but no body; expected both',
      "the derivative of a library's operator is the library's")
  end
  if spec.body and spec.library then
    refuse(name, 'has a body and a library; expected one of them')
  end
  local notes = spec.annotation
  if type(notes) ~= 'function' then
    for _, text in ipairs(type(notes) == 'table' and notes or { notes }) do
      require('nnscaler._C.graph').parse_annotation(text)
    end
  end
end

--- Registers an operator and returns the function that calls it.
---@param name string 'library::operator'
---@param spec nnscaler.OperatorSpec
---@return fun(...): any
function M.register(name, spec)
  check(name, spec)
  if spec.library then C.load_library(spec.library) end
  C.register_op {
    name = name, annotation = spec.annotation, body = spec.body, infer = spec.infer,
    rules = spec.rules, flops = spec.flops, kind = spec.kind, backward = spec.backward,
  }
  local call
  if spec.body then
    local names, body = names_of(name, spec), spec.body
    call = function(...)
      if C.tracing() then return C.composite(name, names, ...) end
      return body(...)
    end
  else
    local space, op = name:match '^(.-)::(.+)$'
    call = ops[space][op]
  end
  M.specs[name] = { spec = spec, call = call }
  return call
end

return setmetatable(M, { __call = function(_, ...) return M.register(...) end })
