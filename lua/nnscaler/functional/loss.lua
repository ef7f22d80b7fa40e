--- Losses of classes, of numbers and of distributions.
local arguments = require 'nnscaler.functional.arguments'
local aten = require('nnscaler.ops').aten
local fail = require 'nnscaler.fail'
local own = require('nnscaler.ops').nnscaler

local M = {}

local NONE, SUM = 0, 2 -- ATen's reductions

local reduction = arguments.reduction

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
    reduction(options, 'cross_entropy'), options.ignore_index or -100,
    options.label_smoothing or 0)
end
--- Cross-entropy of the scores input · weightᵀ with class numbers, of which no more than `chunk`
--- rows exist at a time, in the derivative either. Scores of 16 bits are summed in float32.
---@param input nnscaler.Tensor [..., width]
---@param weight nnscaler.Tensor [classes, width]
---@param target nnscaler.Tensor int64 [...]
---@param options? { reduction?: string, ignore_index?: integer, chunk?: integer } chunk: 1024
---@return nnscaler.Tensor
function M.linear_cross_entropy(input, weight, target, options)
  options = options or {}
  local how = arguments.reduction_name(options, 'linear_cross_entropy')
  local ignored = options.ignore_index or -100
  local loss = own.linear_cross_entropy(input, weight, target, how == 'none' and NONE or SUM,
    ignored, options.chunk or 1024)
  return how == 'mean' and loss / target:ne(ignored):sum() or loss
end
--- Negative log-likelihood of log-probabilities.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? nnscaler.CrossEntropyOptions
---@return nnscaler.Tensor
function M.nll_loss(input, target, options)
  options = options or {}
  return aten.nll_loss_nd(input, target, options.weight, reduction(options, 'nll_loss'),
    options.ignore_index or -100)
end
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? nnscaler.LossOptions
---@return nnscaler.Tensor
function M.mse_loss(input, target, options)
  return aten.mse_loss(input, target, reduction(options, 'mse_loss'))
end
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? nnscaler.LossOptions
---@return nnscaler.Tensor
function M.l1_loss(input, target, options)
  return aten.l1_loss(input, target, reduction(options, 'l1_loss'))
end
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string, beta?: number }
---@return nnscaler.Tensor
function M.smooth_l1_loss(input, target, options)
  return aten.smooth_l1_loss(input, target, reduction(options, 'smooth_l1_loss'),
    options and options.beta or 1)
end
--- Of probabilities.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? nnscaler.LossOptions
---@return nnscaler.Tensor
function M.binary_cross_entropy(input, target, options)
  return aten.binary_cross_entropy(input, target, options and options.weight,
    reduction(options, 'binary_cross_entropy'))
end
--- Of unnormalised scores.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string, weight?: nnscaler.Tensor, pos_weight?: nnscaler.Tensor }
---@return nnscaler.Tensor
function M.binary_cross_entropy_with_logits(input, target, options)
  options = options or {}
  return aten.binary_cross_entropy_with_logits(input, target, options.weight, options.pos_weight,
    reduction(options, 'binary_cross_entropy_with_logits'))
end
--- Kullback-Leibler divergence of log-probabilities; reduction 'mean' divides by all elements,
--- 'batchmean' by the first size.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string, log_target?: boolean }
---@return nnscaler.Tensor
function M.kl_div(input, target, options)
  if options and options.reduction == 'batchmean' then
    local total = aten.kl_div(input, target, 2, { log_target = options.log_target or false })
    return aten.div(total, input.shape[1])
  end
  return aten.kl_div(input, target, reduction(options, 'kl_div'),
    { log_target = options and options.log_target or false })
end
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string, delta?: number } delta: where the square
---   turns to a line, 1
---@return nnscaler.Tensor
function M.huber_loss(input, target, options)
  return aten.huber_loss(input, target, reduction(options, 'huber_loss'),
    options and options.delta or 1)
end

--- Of counts that are Poisson distributed; the input is their mean, or its logarithm.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string, log_input?: boolean, full?: boolean, eps?: number }
---   log_input: true by default; full: with Stirling's term; eps: 1e-8
---@return nnscaler.Tensor
function M.poisson_nll_loss(input, target, options)
  local o = options or {}
  local loss
  if o.log_input ~= false then
    loss = aten.sub(aten.exp(input), aten.mul(target, input))
  else
    loss = aten.sub(input, aten.mul(target, aten.log(input + (o.eps or 1e-8))))
  end
  if o.full then
    local t = aten.clamp_min(target, 1) -- where the term counts, the target itself
    local stirling = t * t:log() - t + (t * (2 * math.pi)):log() * 0.5
    loss = aten.add(loss, aten.masked_fill(stirling, aten.le(target, 1), 0))
  end
  return arguments.reduce(loss, options, 'poisson_nll_loss')
end

--- Of numbers that are normally distributed around the input with a variance.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param var nnscaler.Tensor of the input's shape, or 1 in place of its last size, or without it
---@param options? { reduction?: string, full?: boolean, eps?: number } eps: the least variance,
---   1e-6
---@return nnscaler.Tensor
function M.gaussian_nll_loss(input, target, var, options)
  local o = options or {}
  if var:dim() == input:dim() - 1 then var = aten.unsqueeze(var, -1) end
  if var:dim() ~= input:dim() then
    fail('model', 'functional.gaussian_nll_loss', ('var has %d dimensions, input %d; expected as '
      .. 'many, or one less'):format(var:dim(), input:dim()))
  end
  -- The bound does not stop the gradient.
  var = aten.add(var, aten.detach(aten.sub(aten.clamp_min(var, o.eps or 1e-6), var)))
  local loss = (aten.log(var) + aten.div(aten.square(aten.sub(input, target)), var)) * 0.5
  if o.full then loss = loss + 0.5 * math.log(2 * math.pi) end
  return arguments.reduce(loss, options, 'gaussian_nll_loss')
end

---@class nnscaler.CTCOptions: nnscaler.LossOptions
---@field blank? integer class of no label, 0
---@field zero_infinity? boolean whether losses without an alignment count as 0

--- Connectionist temporal classification: -log of the probability of all alignments of labels with
--- a longer sequence.
---@param log_probs nnscaler.Tensor [time, batch, classes]
---@param targets nnscaler.Tensor int64 [batch, longest], or all labels one after the other
---@param input_lengths nnscaler.Tensor|integer[] [batch]
---@param target_lengths nnscaler.Tensor|integer[] [batch]
---@param options? nnscaler.CTCOptions
---@return nnscaler.Tensor
function M.ctc_loss(log_probs, targets, input_lengths, target_lengths, options)
  local o = options or {}
  return aten.ctc_loss(log_probs, targets, input_lengths, target_lengths, o.blank or 0,
    reduction(options, 'ctc_loss'), o.zero_infinity or false)
end

return M
