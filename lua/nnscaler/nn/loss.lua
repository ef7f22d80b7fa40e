--- Losses: each takes what the model gives and what it should, and returns one number, a mean, or
--- what the option `reduction` ('mean', 'sum', 'none') says.
local F = require 'nnscaler.functional'
local Module = require 'nnscaler.nn.module'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local sorted = require 'nnscaler.sorted'

local M = {}

local SUM = 2 -- ATen's reduction

--- Cross entropy of logits against class numbers: the mean over the labels that count, 0 where none
--- counts.
---@class nnscaler.nn.CrossEntropy : nnscaler.nn.Module
M.CrossEntropy = Module.class 'CrossEntropy'

---@param options? { ignore_index?: integer, label_smoothing?: number } ignore_index: the label that
---   does not count, -100 by default
function M.CrossEntropy:init(options)
  local o = check.options('nn.CrossEntropy', options, { ignore_index = -100, label_smoothing = 0 })
  self.ignore_index = o.ignore_index
  self.label_smoothing = check.probability('nn.CrossEntropy', o.label_smoothing)
end

---@param logits nnscaler.Tensor [..., classes]
---@param labels nnscaler.Tensor int64 [...]
---@return nnscaler.Tensor loss, nnscaler.Tensor count how many labels count
function M.CrossEntropy:forward(logits, labels)
  local total = aten.cross_entropy_loss(logits:flatten(0, -2), labels:flatten(), nil, SUM,
    self.ignore_index, self.label_smoothing)
  local count = labels:ne(self.ignore_index):sum()
  return total / count:clamp_min(1), count
end

-- Options with tensors among them: buffers of the model, as in PyTorch.
local buffers = { weight = true, pos_weight = true }

-- A class of a function f(input, target, …, options) with these options, checked by the type of
-- their defaults, beside the reduction.
local function class(name, f, defaults, reductions)
  defaults.reduction = 'mean'
  M[name] = Module.class(name)
  M[name].init = function(self, options)
    local area = 'nn.' .. name
    local o = check.options(area, options, defaults)
    check.one_of(area, 'reduction', o.reduction, reductions or { 'none', 'mean', 'sum' })
    self.options = {}
    for key, value in sorted.sorted_pairs(o) do
      local default = defaults[key]
      if buffers[key] then
        self:register_buffer(key, value)
      elseif default ~= check.none and type(value) ~= type(default) then
        fail('usage', area, ('%s = %s; expected a %s'):format(key, tostring(value),
          type(default)))
      else
        self.options[key] = value
      end
    end
  end
  M[name].forward = function(self, ...)
    local options, n = {}, select('#', ...)
    for key, value in sorted.sorted_pairs(self.options) do options[key] = value end
    for key in sorted.sorted_pairs(buffers) do options[key] = self[key] end
    local given = { ... }
    given[n + 1] = options
    return f(unpack(given, 1, n + 1))
  end
end

-- --- classes -------------------------------------------------------------------------------------

--- Cross entropy of logits [batch, classes, …] against class numbers [batch, …] or probabilities:
--- CrossEntropyLoss { weight = nil, ignore_index = -100, reduction = 'mean', label_smoothing = 0 }.
---@class nnscaler.nn.CrossEntropyLoss : nnscaler.nn.Module
class('CrossEntropyLoss', F.cross_entropy,
  { weight = check.none, ignore_index = -100, label_smoothing = 0 })

--- The same of log-probabilities: NLLLoss { weight = nil, ignore_index = -100, reduction =
--- 'mean' }.
---@class nnscaler.nn.NLLLoss : nnscaler.nn.Module
class('NLLLoss', F.nll_loss, { weight = check.none, ignore_index = -100 })

--- Binary cross entropy of probabilities against targets between 0 and 1: BCELoss { weight = nil,
--- reduction = 'mean' }.
---@class nnscaler.nn.BCELoss : nnscaler.nn.Module
class('BCELoss', F.binary_cross_entropy, { weight = check.none })

--- Sigmoid and BCELoss in one, without overflow: BCEWithLogitsLoss { weight = nil, pos_weight =
--- nil, reduction = 'mean' }.
---@class nnscaler.nn.BCEWithLogitsLoss : nnscaler.nn.Module
class('BCEWithLogitsLoss', F.binary_cross_entropy_with_logits,
  { weight = check.none, pos_weight = check.none })

--- Connectionist temporal classification, forward(log_probs, targets, input_lengths,
--- target_lengths): CTCLoss { blank = 0, reduction = 'mean', zero_infinity = false }.
---@class nnscaler.nn.CTCLoss : nnscaler.nn.Module
class('CTCLoss', F.ctc_loss, { blank = 0, zero_infinity = false })

-- --- numbers and distributions -------------------------------------------------------------------

--- Mean of squared differences: MSELoss { reduction = 'mean' }.
---@class nnscaler.nn.MSELoss : nnscaler.nn.Module
class('MSELoss', F.mse_loss, {})

--- Mean of absolute differences: L1Loss { reduction = 'mean' }.
---@class nnscaler.nn.L1Loss : nnscaler.nn.Module
class('L1Loss', F.l1_loss, {})

--- Square below beta, line above: SmoothL1Loss { reduction = 'mean', beta = 1 }.
---@class nnscaler.nn.SmoothL1Loss : nnscaler.nn.Module
class('SmoothL1Loss', F.smooth_l1_loss, { beta = 1 })

--- The same times its threshold: HuberLoss { reduction = 'mean', delta = 1 }.
---@class nnscaler.nn.HuberLoss : nnscaler.nn.Module
class('HuberLoss', F.huber_loss, { delta = 1 })

--- Kullback-Leibler divergence of log-probabilities: KLDivLoss { reduction = 'mean', log_target =
--- false }; reduction 'batchmean' divides by the first size, 'mean' by all elements.
---@class nnscaler.nn.KLDivLoss : nnscaler.nn.Module
class('KLDivLoss', F.kl_div, { log_target = false }, { 'none', 'batchmean', 'mean', 'sum' })

--- Of counts: PoissonNLLLoss { log_input = true, full = false, eps = 1e-8, reduction = 'mean' }.
---@class nnscaler.nn.PoissonNLLLoss : nnscaler.nn.Module
class('PoissonNLLLoss', F.poisson_nll_loss, { log_input = true, full = false, eps = 1e-8 })

--- Of normally distributed numbers, forward(input, target, var): GaussianNLLLoss { full = false,
--- eps = 1e-6, reduction = 'mean' }.
---@class nnscaler.nn.GaussianNLLLoss : nnscaler.nn.Module
class('GaussianNLLLoss', F.gaussian_nll_loss, { full = false, eps = 1e-6 })

-- --- margins -------------------------------------------------------------------------------------

--- max(0, margin - y (x₁ - x₂)), forward(x1, x2, y): MarginRankingLoss { margin = 0, reduction =
--- 'mean' }.
---@class nnscaler.nn.MarginRankingLoss : nnscaler.nn.Module
class('MarginRankingLoss', F.margin_ranking_loss, { margin = 0 })

--- x where y = 1, max(0, margin - x) where y = -1: HingeEmbeddingLoss { margin = 1, reduction =
--- 'mean' }.
---@class nnscaler.nn.HingeEmbeddingLoss : nnscaler.nn.Module
class('HingeEmbeddingLoss', F.hinge_embedding_loss, { margin = 1 })

--- 1 - cos where y = 1, max(0, cos - margin) where y = -1, forward(x1, x2, y): CosineEmbeddingLoss
--- { margin = 0, reduction = 'mean' }.
---@class nnscaler.nn.CosineEmbeddingLoss : nnscaler.nn.Module
class('CosineEmbeddingLoss', F.cosine_embedding_loss, { margin = 0 })

--- max(0, margin + ‖a - p‖ - ‖a - n‖), forward(anchor, positive, negative): TripletMarginLoss {
--- margin = 1, p = 2, eps = 1e-6, swap = false, reduction = 'mean' }.
---@class nnscaler.nn.TripletMarginLoss : nnscaler.nn.Module
class('TripletMarginLoss', F.triplet_margin_loss, { margin = 1, p = 2, eps = 1e-6, swap = false })

--- The same with a distance of one's own: TripletMarginWithDistanceLoss { distance_function = nil,
--- margin = 1, swap = false, reduction = 'mean' }.
---@class nnscaler.nn.TripletMarginWithDistanceLoss : nnscaler.nn.Module
class('TripletMarginWithDistanceLoss', F.triplet_margin_with_distance_loss,
  { distance_function = check.none, margin = 1, swap = false })

--- log(1 + exp(-y x)): SoftMarginLoss { reduction = 'mean' }.
---@class nnscaler.nn.SoftMarginLoss : nnscaler.nn.Module
class('SoftMarginLoss', F.soft_margin_loss, {})

--- Mean over the other classes of max(0, margin - x[label] + x[class]) ^ p: MultiMarginLoss { p =
--- 1, margin = 1, weight = nil, reduction = 'mean' }.
---@class nnscaler.nn.MultiMarginLoss : nnscaler.nn.Module
class('MultiMarginLoss', F.multi_margin_loss, { p = 1, margin = 1, weight = check.none })

--- The same for several labels a sample, which end at the first -1: MultiLabelMarginLoss {
--- reduction = 'mean' }.
---@class nnscaler.nn.MultiLabelMarginLoss : nnscaler.nn.Module
class('MultiLabelMarginLoss', F.multilabel_margin_loss, {})

--- Binary cross entropy of every class, the mean over classes: MultiLabelSoftMarginLoss { weight =
--- nil, reduction = 'mean' }.
---@class nnscaler.nn.MultiLabelSoftMarginLoss : nnscaler.nn.Module
class('MultiLabelSoftMarginLoss', F.multilabel_soft_margin_loss, { weight = check.none })

return M
