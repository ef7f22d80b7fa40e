--- Tensors for scripts: factories, explicit generators, modes as blocks. Any ATen operator is here
--- too (`T.cat { a, b }`, `T.where(c, x, y)`) and as a method (`x:matmul(y)`).
local C = require 'nnscaler._C.tensor'
local aten = require 'nnscaler.ops'.aten
local fail = require 'nnscaler.fail'

---@class nnscaler.Tensor
---@field shape integer[]
---@field dtype string 'float32', 'float64', 'bfloat16', 'int64', 'bool', …
---@field device string
---@field requires_grad boolean
---@field grad nnscaler.Tensor|nil
---@field data nnscaler.Tensor the same elements without history
---@field kind 'real'|'traced'|'parameter'|'released'

---@class nnscaler.Generator

---@class nnscaler.TensorOptions
---@field dtype? string float32 by default
---@field device? string cpu by default
---@field requires_grad? boolean

local M = {}

-- Operators that make tensors are reached as they are: sizes as a list or one by one, then options.
for _, name in ipairs {
  'zeros', 'ones', 'empty', 'full', 'eye', 'arange', 'linspace', 'zeros_like', 'ones_like',
  'full_like', 'empty_like', 'cat', 'stack', 'where', 'tril', 'triu',
} do
  M[name] = aten[name]
end

--- Makes a tensor of nested lists, a number or a boolean: float32, or bool for booleans.
---@param values table|number|boolean
---@param options? nnscaler.TensorOptions
---@return nnscaler.Tensor
function M.tensor(values, options)
  options = options or {}
  local x = C.from_table(values, options.dtype, options.device)
  if options.requires_grad then x:requires_grad_() end
  return x
end

--- A number as a tensor without dimensions, for arithmetic in a dtype of its own.
---@param value number
---@param dtype? string float32 by default
---@return nnscaler.Tensor
function M.scalar(value, dtype) return C.from_table(value, dtype) end

--- A generator of random numbers with a state of its own.
---@param seed integer
---@param device? string
---@return nnscaler.Generator
function M.generator(seed, device) return C.generator(seed, device) end

-- The arguments as given, if their last is an options table with a generator.
local function random(name)
  local call = aten[name]
  return function(...)
    local options = select(select('#', ...), ...)
    if type(options) ~= 'table' or not options.generator then
      fail('model', 'tensor.random', ('T.%s without a generator; there is no hidden one')
        :format(name),
        ('T.%s(2, 3, { generator = T.generator(seed) })'):format(name))
    end
    return call(...)
  end
end

--- Standard normal numbers: T.randn(2, 3, { generator = g }).
M.randn = random 'randn'
--- Uniform numbers in [0, 1): T.rand({ 2, 3 }, { generator = g, dtype = 'float64' }).
M.rand = random 'rand'
--- Integers from low (0 if left out) below high: T.randint(low, high, { 2, 3 }, { generator = g }).
M.randint = random 'randint'
--- The numbers 0 … n - 1 in random order: T.randperm(n, { generator = g }).
M.randperm = random 'randperm'

--- The range start … stop - 1 (with a step) as an index: x[{ T.slice(0, n), 1 }].
M.slice = C.slice

--- Whether a value is a tensor (real, traced or parameter).
---@param value any
---@return boolean
M.is_tensor = C.is_tensor

--- Runs fn(…) without recording gradients; returns its results.
---@param fn function
M.no_grad = C.no_grad
--- Runs fn(…) with gradients recorded, inside no_grad too.
---@param fn function
M.enable_grad = C.enable_grad
--- Runs fn(…) in LibTorch's inference mode: its tensors can never take part in autograd.
---@param fn function
M.inference_mode = C.inference_mode

--- Runs fn(…) with matrix products in a shorter dtype.
---@param dtype 'bfloat16'|'float16'
---@param fn function
---@param ... any arguments of fn
function M.autocast(dtype, fn, ...) return C.autocast(dtype, 'cpu', fn, ...) end

--- As autocast, for the operators of one kind of device.
---@param device 'cpu'|'cuda'
---@param dtype 'bfloat16'|'float16'
---@param fn function
---@param ... any arguments of fn
function M.autocast_on(device, dtype, fn, ...) return C.autocast(dtype, device, fn, ...) end

---@class nnscaler.GradOptions
---@field grad_outputs? nnscaler.Tensor[]
---@field retain_graph? boolean
---@field create_graph? boolean
---@field allow_unused? boolean

--- Gradients of outputs by inputs, as a list (false where there is no path and allow_unused).
---@param outputs nnscaler.Tensor|nnscaler.Tensor[]
---@param inputs nnscaler.Tensor|nnscaler.Tensor[]
---@param options? nnscaler.GradOptions
---@return (nnscaler.Tensor|false)[]
function M.grad(outputs, inputs, options) return C.methods._gradients(outputs, inputs, options) end

--- Whether a GPU can be used, and if not, why.
---@return boolean, string
M.has_cuda = C.has_cuda

return setmetatable(M, {
  __index = function(t, name)
    local call = aten[name]
    rawset(t, name, call)
    return call
  end,
})
