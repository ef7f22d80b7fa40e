--- Losses of classes, of numbers and of distributions.
local arguments = require 'nnscaler.functional.arguments'
local aten = require('nnscaler.ops').aten
local fail = require 'nnscaler.fail'
local own = require('nnscaler.ops').nnscaler

local M = {}

local NONE, SUM = 0, 2 -- ATen's reductions

local reduction, reader = arguments.reduction, arguments.reader

---@class nnscaler.LossOptions
---@field reduction? 'mean'|'sum'|'none'
---@field weight? nnscaler.Tensor


---@class nnscaler.CrossEntropyOptions: nnscaler.LossOptions
---@field ignore_index? integer -100
---@field label_smoothing? number 0

local cross_entropy = reader('cross_entropy',
  { 'ignore_index', 'label_smoothing', 'reduction', 'weight' })
--- Cross-entropy of unnormalised scores [n, classes, …] with class numbers or probabilities.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? nnscaler.CrossEntropyOptions
---@return nnscaler.Tensor
function M.cross_entropy(input, target, options)
  if not options then return aten.cross_entropy_loss(input, target) end
  local o = cross_entropy(options)
  return aten.cross_entropy_loss(input, target, o.weight, reduction(o, 'cross_entropy'),
    o.ignore_index or -100, o.label_smoothing or 0)
end
local linear_cross_entropy = reader('linear_cross_entropy',
  { 'chunk', 'ignore_index', 'reduction' })
--- Cross-entropy of the scores input · weightᵀ with class numbers, of which no more than `chunk`
--- rows exist at a time, in the derivative either. Scores of 16 bits are summed in float32.
---@param input nnscaler.Tensor [..., width]
---@param weight nnscaler.Tensor [classes, width]
---@param target nnscaler.Tensor int64 [...]
---@param options? { reduction?: string, ignore_index?: integer, chunk?: integer } chunk: 1024
---@return nnscaler.Tensor
function M.linear_cross_entropy(input, weight, target, options)
  local o = linear_cross_entropy(options)
  local how = arguments.reduction_name(o, 'linear_cross_entropy')
  local ignored = o.ignore_index or -100
  local loss = own.linear_cross_entropy(input, weight, target, how == 'none' and NONE or SUM,
    ignored, o.chunk or 1024)
  return how == 'mean' and loss / target:ne(ignored):sum() or loss
end
local nll_loss = reader('nll_loss', { 'ignore_index', 'reduction', 'weight' })
--- Negative log-likelihood of log-probabilities.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? nnscaler.CrossEntropyOptions
---@return nnscaler.Tensor
function M.nll_loss(input, target, options)
  local o = nll_loss(options)
  return aten.nll_loss_nd(input, target, o.weight, reduction(o, 'nll_loss'),
    o.ignore_index or -100)
end
local mse_loss = reader('mse_loss', { 'reduction' })
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string }
---@return nnscaler.Tensor
function M.mse_loss(input, target, options)
  return aten.mse_loss(input, target, reduction(mse_loss(options), 'mse_loss'))
end
local l1_loss = reader('l1_loss', { 'reduction' })
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string }
---@return nnscaler.Tensor
function M.l1_loss(input, target, options)
  return aten.l1_loss(input, target, reduction(l1_loss(options), 'l1_loss'))
end
local smooth_l1_loss = reader('smooth_l1_loss', { 'beta', 'reduction' })
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string, beta?: number }
---@return nnscaler.Tensor
function M.smooth_l1_loss(input, target, options)
  local o = smooth_l1_loss(options)
  return aten.smooth_l1_loss(input, target, reduction(o, 'smooth_l1_loss'), o.beta or 1)
end
local binary_cross_entropy = reader('binary_cross_entropy', { 'reduction', 'weight' })
--- Of probabilities.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? nnscaler.LossOptions
---@return nnscaler.Tensor
function M.binary_cross_entropy(input, target, options)
  local o = binary_cross_entropy(options)
  return aten.binary_cross_entropy(input, target, o.weight, reduction(o, 'binary_cross_entropy'))
end
local with_logits = reader('binary_cross_entropy_with_logits',
  { 'pos_weight', 'reduction', 'weight' })
--- Of unnormalised scores.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string, weight?: nnscaler.Tensor, pos_weight?: nnscaler.Tensor }
---@return nnscaler.Tensor
function M.binary_cross_entropy_with_logits(input, target, options)
  local o = with_logits(options)
  return aten.binary_cross_entropy_with_logits(input, target, o.weight, o.pos_weight,
    reduction(o, 'binary_cross_entropy_with_logits'))
end
local kl_div = reader('kl_div', { 'log_target', 'reduction' })
--- Kullback-Leibler divergence of log-probabilities; reduction 'mean' divides by all elements,
--- 'batchmean' by the first size.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string, log_target?: boolean }
---@return nnscaler.Tensor
function M.kl_div(input, target, options)
  local o = kl_div(options)
  local log_target = { log_target = o.log_target or false }
  if o.reduction == 'batchmean' then
    return aten.div(aten.kl_div(input, target, SUM, log_target), input.shape[1])
  end
  return aten.kl_div(input, target, reduction(o, 'kl_div'), log_target)
end
local huber_loss = reader('huber_loss', { 'delta', 'reduction' })
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string, delta?: number } delta: where the square
---   turns to a line, 1
---@return nnscaler.Tensor
function M.huber_loss(input, target, options)
  local o = huber_loss(options)
  return aten.huber_loss(input, target, reduction(o, 'huber_loss'), o.delta or 1)
end

local poisson_nll_loss = reader('poisson_nll_loss', { 'eps', 'full', 'log_input', 'reduction' })
--- Of counts that are Poisson distributed; the input is their mean, or its logarithm.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param options? { reduction?: string, log_input?: boolean, full?: boolean, eps?: number }
---   log_input: true by default; full: with Stirling's term; eps: 1e-8
---@return nnscaler.Tensor
function M.poisson_nll_loss(input, target, options)
  local o = poisson_nll_loss(options)
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
  return arguments.reduce(loss, o, 'poisson_nll_loss')
end

local gaussian_nll_loss = reader('gaussian_nll_loss', { 'eps', 'full', 'reduction' })
--- Of numbers that are normally distributed around the input with a variance.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor
---@param var nnscaler.Tensor of the input's shape, or 1 in place of its last size, or without it
---@param options? { reduction?: string, full?: boolean, eps?: number } eps: the least variance,
---   1e-6
---@return nnscaler.Tensor
function M.gaussian_nll_loss(input, target, var, options)
  local o = gaussian_nll_loss(options)
  if var:dim() == input:dim() - 1 then var = aten.unsqueeze(var, -1) end
  if var:dim() ~= input:dim() then
    fail('model', 'functional.gaussian_nll_loss', ('var has %d dimensions, input %d; expected as '
      .. 'many, or one less'):format(var:dim(), input:dim()))
  end
  -- The bound does not stop the gradient.
  var = aten.add(var, aten.detach(aten.sub(aten.clamp_min(var, o.eps or 1e-6), var)))
  local loss = (aten.log(var) + aten.div(aten.square(aten.sub(input, target)), var)) * 0.5
  if o.full then loss = loss + 0.5 * math.log(2 * math.pi) end
  return arguments.reduce(loss, o, 'gaussian_nll_loss')
end

---@class nnscaler.CTCOptions: nnscaler.LossOptions
---@field blank? integer class of no label, 0
---@field zero_infinity? boolean whether losses without an alignment count as 0

local ctc_loss = reader('ctc_loss', { 'blank', 'reduction', 'zero_infinity' })
--- Connectionist temporal classification: -log of the probability of all alignments of labels with
--- a longer sequence.
---@param log_probs nnscaler.Tensor [time, batch, classes]
---@param targets nnscaler.Tensor int64 [batch, longest], or all labels one after the other
---@param input_lengths nnscaler.Tensor|integer[] [batch]
---@param target_lengths nnscaler.Tensor|integer[] [batch]
---@param options? nnscaler.CTCOptions
---@return nnscaler.Tensor
function M.ctc_loss(log_probs, targets, input_lengths, target_lengths, options)
  local o = ctc_loss(options)
  return aten.ctc_loss(log_probs, targets, input_lengths, target_lengths, o.blank or 0,
    reduction(o, 'ctc_loss'), o.zero_infinity or false)
end

return M
