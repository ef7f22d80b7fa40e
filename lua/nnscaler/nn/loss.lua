--- Losses: each returns one number, a mean.
local Module = require 'nnscaler.nn.module'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'

local M = {}

local MEAN, SUM = 1, 2 -- ATen's reductions

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

--- Binary cross entropy of probabilities against targets between 0 and 1.
---@class nnscaler.nn.BCE : nnscaler.nn.Module
M.BCE = Module.class 'BCE'

---@param probabilities nnscaler.Tensor
---@param targets nnscaler.Tensor
---@return nnscaler.Tensor
function M.BCE:forward(probabilities, targets)
  return aten.binary_cross_entropy(probabilities, targets, nil, MEAN)
end

--- Binary cross entropy of logits: sigmoid and BCE in one, without overflow.
---@class nnscaler.nn.BCEWithLogits : nnscaler.nn.Module
M.BCEWithLogits = Module.class 'BCEWithLogits'

---@param logits nnscaler.Tensor
---@param targets nnscaler.Tensor
---@return nnscaler.Tensor
function M.BCEWithLogits:forward(logits, targets)
  return aten.binary_cross_entropy_with_logits(logits, targets, nil, nil, MEAN)
end

--- Mean of squared differences.
---@class nnscaler.nn.MSE : nnscaler.nn.Module
M.MSE = Module.class 'MSE'

---@param predictions nnscaler.Tensor
---@param targets nnscaler.Tensor
---@return nnscaler.Tensor
function M.MSE:forward(predictions, targets) return aten.mse_loss(predictions, targets, MEAN) end

return M
