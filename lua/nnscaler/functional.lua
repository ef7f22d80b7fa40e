--- Operators of networks as functions: F.linear(x, w, b), F.gelu(x), F.cross_entropy(logits, ids).
--- Arguments in PyTorch's order; options that PyTorch takes by keyword stand in a last table.
local ops = require 'nnscaler.ops'
local fail = require 'nnscaler.fail'
local aten = ops.aten

local M = {}

local reductions = { none = 0, mean = 1, sum = 2 }

local function reduction_of(options, what)
  local name = options and options.reduction or 'mean'
  local value = reductions[name]
  if not value then
    fail('model', 'functional.' .. what, ("reduction '%s'; expected none, mean or sum")
      :format(tostring(name)))
  end
  return value
end

-- One number for each of n spatial dimensions.
local function spread(value, n)
  if type(value) ~= 'number' then return value end
  local list = {}
  for i = 1, n do list[i] = value end
  return list
end

-- --- products -----------------------------------------------------------------------------------

--- x·Wᵀ + b over the last dimension.
---@param input nnscaler.Tensor
---@param weight nnscaler.Tensor [out, in]
---@param bias? nnscaler.Tensor
---@return nnscaler.Tensor
function M.linear(input, weight, bias) return aten.linear(input, weight, bias) end

--- Rows of a table by integer indices.
---@param input nnscaler.Tensor int64
---@param weight nnscaler.Tensor [rows, width]
---@param options? { padding_idx?: integer }
---@return nnscaler.Tensor
function M.embedding(input, weight, options)
  return aten.embedding(weight, input, options and options.padding_idx)
end

---@class nnscaler.AttentionOptions
---@field attn_mask? nnscaler.Tensor bool (true: look) or added to the scores
---@field dropout_p? number
---@field is_causal? boolean
---@field scale? number 1/√width by default
---@field enable_gqa? boolean fewer heads in key and value than in query

--- softmax(q·kᵀ·scale + mask)·v over [batch, heads, length, width].
---@param query nnscaler.Tensor
---@param key nnscaler.Tensor
---@param value nnscaler.Tensor
---@param options? nnscaler.AttentionOptions
---@return nnscaler.Tensor
function M.scaled_dot_product_attention(query, key, value, options)
  if options then return aten.scaled_dot_product_attention(query, key, value, options) end
  return aten.scaled_dot_product_attention(query, key, value)
end

---@class nnscaler.ConvOptions
---@field stride? integer|integer[]
---@field padding? integer|integer[]|'same'|'valid'
---@field dilation? integer|integer[]
---@field groups? integer

local function convolution(name, n)
  local call = aten[name]
  return function(input, weight, bias, options)
    options = options or {}
    return call(input, weight, bias, spread(options.stride or 1, n),
      spread(options.padding or 0, n), spread(options.dilation or 1, n), options.groups or 1)
  end
end

--- Convolutions (cross-correlations) over 1, 2 and 3 dimensions.
---@alias nnscaler.Convolution fun(input, weight, bias?, options?: nnscaler.ConvOptions): any
---@type nnscaler.Convolution
M.conv1d = convolution('conv1d', 1)
M.conv2d = convolution('conv2d', 2)
M.conv3d = convolution('conv3d', 3)

-- --- normalisation -------------------------------------------------------------------------------

--- Normalises over the last dimensions.
---@param input nnscaler.Tensor
---@param normalized_shape integer[]
---@param weight? nnscaler.Tensor
---@param bias? nnscaler.Tensor
---@param eps? number 1e-5
---@return nnscaler.Tensor
function M.layer_norm(input, normalized_shape, weight, bias, eps)
  return aten.layer_norm(input, normalized_shape, weight, bias, eps or 1e-5)
end

--- Divides by the root mean square over the last dimensions.
---@param input nnscaler.Tensor
---@param normalized_shape integer[]
---@param weight? nnscaler.Tensor
---@param eps? number of the dtype by default
---@return nnscaler.Tensor
function M.rms_norm(input, normalized_shape, weight, eps)
  return aten.rms_norm(input, normalized_shape, weight, eps)
end

--- Normalises each of the groups of channels (dimension 1).
---@param input nnscaler.Tensor
---@param groups integer
---@param weight? nnscaler.Tensor
---@param bias? nnscaler.Tensor
---@param eps? number 1e-5
---@return nnscaler.Tensor
function M.group_norm(input, groups, weight, bias, eps)
  return aten.group_norm(input, groups, weight, bias, eps or 1e-5)
end

---@class nnscaler.BatchNormOptions
---@field weight? nnscaler.Tensor
---@field bias? nnscaler.Tensor
---@field training? boolean
---@field momentum? number 0.1
---@field eps? number 1e-5

--- Normalises each channel (dimension 1) over the batch; in training it updates the statistics.
---@param input nnscaler.Tensor
---@param running_mean? nnscaler.Tensor
---@param running_var? nnscaler.Tensor
---@param options? nnscaler.BatchNormOptions
---@return nnscaler.Tensor
function M.batch_norm(input, running_mean, running_var, options)
  options = options or {}
  return aten.batch_norm(input, options.weight, options.bias, running_mean, running_var,
    options.training or false, options.momentum or 0.1, options.eps or 1e-5, true)
end

--- Divides by the p-norm over a dimension.
---@param input nnscaler.Tensor
---@param options? { p?: number, dim?: integer, eps?: number }
---@return nnscaler.Tensor
function M.normalize(input, options)
  options = options or {}
  local dim = options.dim or 1
  local norm = aten.norm(input, options.p or 2, { dim }, true)
  return aten.div(input, aten.expand_as(aten.clamp_min(norm, options.eps or 1e-12), input))
end

-- --- activations ---------------------------------------------------------------------------------

---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.relu(input) return aten.relu(input) end
---@param input nnscaler.Tensor
---@param approximate? 'none'|'tanh'
---@return nnscaler.Tensor
function M.gelu(input, approximate)
  if approximate and approximate ~= 'none' then
    return aten.gelu(input, { approximate = approximate })
  end
  return aten.gelu(input)
end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.silu(input) return aten.silu(input) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.mish(input) return aten.mish(input) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.tanh(input) return aten.tanh(input) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.sigmoid(input) return aten.sigmoid(input) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.hardswish(input) return aten.hardswish(input) end
---@param input nnscaler.Tensor
---@return nnscaler.Tensor
function M.relu6(input) return aten.relu6(input) end
---@param input nnscaler.Tensor
---@param negative_slope? number 0.01
---@return nnscaler.Tensor
function M.leaky_relu(input, negative_slope)
  return aten.leaky_relu(input, negative_slope or 0.01)
end
---@param input nnscaler.Tensor
---@param alpha? number 1
---@return nnscaler.Tensor
function M.elu(input, alpha) return aten.elu(input, alpha or 1) end
---@param input nnscaler.Tensor
---@param beta? number 1
---@param threshold? number 20
---@return nnscaler.Tensor
function M.softplus(input, beta, threshold)
  return aten.softplus(input, beta or 1, threshold or 20)
end
--- First half times the sigmoid of the second.
---@param input nnscaler.Tensor
---@param dim? integer -1
---@return nnscaler.Tensor
function M.glu(input, dim) return aten.glu(input, dim or -1) end
---@param input nnscaler.Tensor
---@param dim integer
---@param dtype? string
---@return nnscaler.Tensor
function M.softmax(input, dim, dtype) return aten.softmax(input, dim, dtype) end
---@param input nnscaler.Tensor
---@param dim integer
---@param dtype? string
---@return nnscaler.Tensor
function M.log_softmax(input, dim, dtype) return aten.log_softmax(input, dim, dtype) end

--- Zeroes elements with probability p and scales the others. Which ones follows from seed, module
--- path, step and micro-batch: there is no hidden state.
---@param input nnscaler.Tensor
---@param p? number 0.5
---@param training? boolean true by default
---@return nnscaler.Tensor
function M.dropout(input, p, training)
  p = p or 0.5
  if p < 0 or p > 1 then
    fail('model', 'functional.dropout', ('p is %g; expected a number from 0 to 1'):format(p))
  end
  return aten.dropout(input, p, training ~= false)
end

-- --- noise -------------------------------------------------------------------------------------
-- As those of dropout, draws follow from seed, module path, step and micro-batch, so that every
-- plan draws the same elements. No gradient leads through them.

--- Standard normal noise of the input's shape.
---@param input nnscaler.Tensor floating point
---@param options? { dtype?: string }
---@return nnscaler.Tensor
function M.randn_like(input, options) return aten.randn_like(input, options) end

--- Noise of the input's shape, uniform from 0 up to 1.
---@param input nnscaler.Tensor floating point
---@param options? { dtype?: string }
---@return nnscaler.Tensor
function M.rand_like(input, options) return aten.rand_like(input, options) end

--- Normal noise of the mean's shape; gradients reach mean and std.
---@param mean nnscaler.Tensor floating point
---@param std nnscaler.Tensor|number that broadcasts to it
---@return nnscaler.Tensor
function M.normal(mean, std) return aten.randn_like(mean) * std + mean end

--- 1 with probability p, else 0.
---@param p nnscaler.Tensor of probabilities
---@return nnscaler.Tensor of its shape and dtype
function M.bernoulli(p) return aten.bernoulli(p) end

-- --- pooling and shape ---------------------------------------------------------------------------

---@class nnscaler.PoolOptions
---@field stride? integer|integer[] the kernel's size by default
---@field padding? integer|integer[]
---@field dilation? integer|integer[] of max_pool2d
---@field ceil_mode? boolean

---@param input nnscaler.Tensor
---@param kernel_size integer|integer[]
---@param options? nnscaler.PoolOptions
---@return nnscaler.Tensor
function M.max_pool2d(input, kernel_size, options)
  options = options or {}
  return aten.max_pool2d(input, spread(kernel_size, 2), spread(options.stride or kernel_size, 2),
    spread(options.padding or 0, 2), spread(options.dilation or 1, 2), options.ceil_mode or false)
end
---@param input nnscaler.Tensor
---@param kernel_size integer|integer[]
---@param options? nnscaler.PoolOptions
---@return nnscaler.Tensor
function M.avg_pool2d(input, kernel_size, options)
  options = options or {}
  return aten.avg_pool2d(input, spread(kernel_size, 2), spread(options.stride or kernel_size, 2),
    spread(options.padding or 0, 2), options.ceil_mode or false)
end
---@param input nnscaler.Tensor
---@param output_size integer|integer[]
---@return nnscaler.Tensor
function M.adaptive_avg_pool2d(input, output_size)
  return aten.adaptive_avg_pool2d(input, spread(output_size, 2))
end
--- Pads from the last dimension inwards: { left, right, top, bottom, … }.
---@param input nnscaler.Tensor
---@param pad integer[]
---@param mode? 'constant'|'reflect'|'replicate'|'circular'
---@param value? number
---@return nnscaler.Tensor
function M.pad(input, pad, mode, value) return aten.pad(input, pad, mode or 'constant', value) end
---@param input nnscaler.Tensor int64
---@param num_classes? integer
---@return nnscaler.Tensor
function M.one_hot(input, num_classes) return aten.one_hot(input, num_classes or -1) end

-- --- losses --------------------------------------------------------------------------------------

---@class nnscaler.LossOptions
---@field reduction? 'mean'|'sum'|'none'
---@field weight? nnscaler.Tensor

---@class nnscaler.CrossEntropyOptions: nnscaler.LossOptions
---@field ignore_index? integer -100
---@field label_smoothing? number 0

--- Cross-entropy of unnormalised scores [n, classes, …] with class numbers or probabilities.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? nnscaler.CrossEntropyOptions
---@return nnscaler.Tensor
function M.cross_entropy(input, target, options)
  if not options then return aten.cross_entropy_loss(input, target) end
  return aten.cross_entropy_loss(input, target, options.weight,
    reduction_of(options, 'cross_entropy'), options.ignore_index or -100,
    options.label_smoothing or 0)
end
--- Negative log-likelihood of log-probabilities.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? nnscaler.CrossEntropyOptions
---@return nnscaler.Tensor
function M.nll_loss(input, target, options)
  options = options or {}
  return aten.nll_loss_nd(input, target, options.weight, reduction_of(options, 'nll_loss'),
    options.ignore_index or -100)
end
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? nnscaler.LossOptions
---@return nnscaler.Tensor
function M.mse_loss(input, target, options)
  return aten.mse_loss(input, target, reduction_of(options, 'mse_loss'))
end
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? nnscaler.LossOptions
---@return nnscaler.Tensor
function M.l1_loss(input, target, options)
  return aten.l1_loss(input, target, reduction_of(options, 'l1_loss'))
end
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string, beta?: number }
---@return nnscaler.Tensor
function M.smooth_l1_loss(input, target, options)
  return aten.smooth_l1_loss(input, target, reduction_of(options, 'smooth_l1_loss'),
    options and options.beta or 1)
end
--- Of probabilities.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? nnscaler.LossOptions
---@return nnscaler.Tensor
function M.binary_cross_entropy(input, target, options)
  return aten.binary_cross_entropy(input, target, options and options.weight,
    reduction_of(options, 'binary_cross_entropy'))
end
--- Of unnormalised scores.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string, weight?: nnscaler.Tensor, pos_weight?: nnscaler.Tensor }
---@return nnscaler.Tensor
function M.binary_cross_entropy_with_logits(input, target, options)
  options = options or {}
  return aten.binary_cross_entropy_with_logits(input, target, options.weight, options.pos_weight,
    reduction_of(options, 'binary_cross_entropy_with_logits'))
end
--- Kullback-Leibler divergence of log-probabilities; reduction 'mean' divides by all elements.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string, log_target?: boolean }
---@return nnscaler.Tensor
function M.kl_div(input, target, options)
  return aten.kl_div(input, target, reduction_of(options, 'kl_div'),
    { log_target = options and options.log_target or false })
end

return M
