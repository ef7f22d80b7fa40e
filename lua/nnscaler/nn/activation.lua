--- Activations: element by element, gated halves, softmax; parameters only where they are learnt.
local F = require 'nnscaler.functional'
local Module = require 'nnscaler.nn.module'
local check = require 'nnscaler.nn.check'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'

local M = {}

-- A class of what a function makes of one tensor and the numbers of the constructor: { name,
-- default } in order. A default of nil is one that has to be given.
local function class(name, f, ...)
  local arguments = { ... }
  M[name] = Module.class(name)
  if #arguments > 0 then
    M[name].init = function(self, ...)
      local given = { ... }
      for i, argument in ipairs(arguments) do
        self[argument[1]] = check.number('nn.' .. name, argument[1], given[i], argument[2])
      end
    end
  end
  M[name].forward = function(self, x)
    local values = {}
    for i, argument in ipairs(arguments) do values[i] = self[argument[1]] end
    return f(x, unpack(values, 1, #arguments))
  end
end

--- x Φ(x), exactly or by the tanh approximation.
---@class nnscaler.nn.GELU : nnscaler.nn.Module
M.GELU = Module.class 'GELU'

---@param options? { approximate?: 'none'|'tanh' }
function M.GELU:init(options)
  local o = check.options('nn.GELU', options, { approximate = 'none' })
  self.approximate = check.one_of('nn.GELU', 'approximate', o.approximate, { 'none', 'tanh' })
end

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.GELU:forward(x) return F.gelu(x, self.approximate) end

--- max(x, 0).
---@class nnscaler.nn.ReLU : nnscaler.nn.Module
class('ReLU', F.relu)

--- x sigmoid(x).
---@class nnscaler.nn.SiLU : nnscaler.nn.Module
class('SiLU', F.silu)

--- The hyperbolic tangent.
---@class nnscaler.nn.Tanh : nnscaler.nn.Module
class('Tanh', F.tanh)

--- 1 / (1 + e⁻ˣ).
---@class nnscaler.nn.Sigmoid : nnscaler.nn.Module
class('Sigmoid', F.sigmoid)

--- x tanh(softplus(x)).
---@class nnscaler.nn.Mish : nnscaler.nn.Module
class('Mish', F.mish)

--- min(max(x, 0), 6).
---@class nnscaler.nn.ReLU6 : nnscaler.nn.Module
class('ReLU6', F.relu6)

--- LeakyReLU(negative_slope = 0.01): x, or negative_slope x where x < 0.
---@class nnscaler.nn.LeakyReLU : nnscaler.nn.Module
class('LeakyReLU', F.leaky_relu, { 'negative_slope', 0.01 })

--- ELU(alpha = 1): x, or alpha (eˣ - 1) where x < 0.
---@class nnscaler.nn.ELU : nnscaler.nn.Module
class('ELU', F.elu, { 'alpha', 1 })

--- ELU, scaled to keep mean and variance.
---@class nnscaler.nn.SELU : nnscaler.nn.Module
class('SELU', F.selu)

--- CELU(alpha = 1): x, or alpha (e^(x / alpha) - 1) where x < 0.
---@class nnscaler.nn.CELU : nnscaler.nn.Module
class('CELU', F.celu, { 'alpha', 1 })

--- Hardtanh(min_val = -1, max_val = 1): x within bounds.
---@class nnscaler.nn.Hardtanh : nnscaler.nn.Module
class('Hardtanh', F.hardtanh, { 'min_val', -1 }, { 'max_val', 1 })

--- x relu6(x + 3) / 6.
---@class nnscaler.nn.Hardswish : nnscaler.nn.Module
class('Hardswish', F.hardswish)

--- relu6(x + 3) / 6.
---@class nnscaler.nn.Hardsigmoid : nnscaler.nn.Module
class('Hardsigmoid', F.hardsigmoid)

--- Hardshrink(lambd = 0.5): x, or 0 where |x| ≤ lambd.
---@class nnscaler.nn.Hardshrink : nnscaler.nn.Module
class('Hardshrink', F.hardshrink, { 'lambd', 0.5 })

--- Softshrink(lambd = 0.5): x moved towards 0 by lambd.
---@class nnscaler.nn.Softshrink : nnscaler.nn.Module
class('Softshrink', F.softshrink, { 'lambd', 0.5 })

--- x - tanh(x).
---@class nnscaler.nn.Tanhshrink : nnscaler.nn.Module
class('Tanhshrink', F.tanhshrink)

--- Softplus(beta = 1, threshold = 20): log(1 + e^(beta x)) / beta, x where beta x > threshold.
---@class nnscaler.nn.Softplus : nnscaler.nn.Module
class('Softplus', F.softplus, { 'beta', 1 }, { 'threshold', 20 })

--- x / (1 + |x|).
---@class nnscaler.nn.Softsign : nnscaler.nn.Module
class('Softsign', F.softsign)

--- log sigmoid(x).
---@class nnscaler.nn.LogSigmoid : nnscaler.nn.Module
class('LogSigmoid', F.logsigmoid)

--- Threshold(threshold, value): x, or value where x ≤ threshold.
---@class nnscaler.nn.Threshold : nnscaler.nn.Module
class('Threshold', F.threshold, { 'threshold' }, { 'value' })

--- GLU(dim = -1): the first half times the sigmoid of the second.
---@class nnscaler.nn.GLU : nnscaler.nn.Module
class('GLU', F.glu, { 'dim', -1 })

--- Softmax(dim = -1).
---@class nnscaler.nn.Softmax : nnscaler.nn.Module
class('Softmax', F.softmax, { 'dim', -1 })

--- LogSoftmax(dim = -1).
---@class nnscaler.nn.LogSoftmax : nnscaler.nn.Module
class('LogSoftmax', F.log_softmax, { 'dim', -1 })

--- Softmin(dim = -1): softmax of -x.
---@class nnscaler.nn.Softmin : nnscaler.nn.Module
class('Softmin', F.softmin, { 'dim', -1 })

--- Softmax over the channels of each pixel of [batch, channels, height, width].
---@class nnscaler.nn.Softmax2d : nnscaler.nn.Module
class('Softmax2d', function(x) return F.softmax(x, -3) end)

--- Leaky rectifier with learnt slopes.
---@class nnscaler.nn.PReLU : nnscaler.nn.Module
---@field weight nnscaler.Tensor [num_parameters]
M.PReLU = Module.class 'PReLU'

---@param num_parameters? integer 1, or the number of channels (dimension 1)
---@param first? number first value of the slopes, 0.25
---@param options? { dtype?: string }
function M.PReLU:init(num_parameters, first, options)
  local n = check.integer('nn.PReLU', 'num_parameters', num_parameters or 1)
  local o = check.options('nn.PReLU', options, { dtype = 'float32' })
  self.weight = kinds.parameter { shape = { n }, dtype = o.dtype,
    init = init.constant(check.number('nn.PReLU', 'init', first, 0.25)) }
end

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.PReLU:forward(x) return F.prelu(x, self.weight) end

--- Leaky rectifier whose slopes are drawn between two bounds in training.
---@class nnscaler.nn.RReLU : nnscaler.nn.Module
M.RReLU = Module.class 'RReLU'

---@param lower? number 1/8
---@param upper? number 1/3
function M.RReLU:init(lower, upper)
  self.lower = check.number('nn.RReLU', 'lower', lower, 1 / 8)
  self.upper = check.number('nn.RReLU', 'upper', upper, 1 / 3, self.lower)
end

---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function M.RReLU:forward(x) return F.rrelu(x, self.lower, self.upper, self.training) end

return M
