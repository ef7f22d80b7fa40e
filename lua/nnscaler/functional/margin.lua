--- Losses of margins: ranking, hinges, pairs and triplets of embeddings, several labels.
local arguments = require 'nnscaler.functional.arguments'
local aten = require('nnscaler.ops').aten
local distance = require 'nnscaler.functional.distance'

local M = {}

local reader, reduce = arguments.reader, arguments.reduce

local function hinge(x) return aten.clamp_min(x, 0) end

local margin_ranking_loss = reader('margin_ranking_loss', { 'margin', 'reduction' })
--- max(0, margin - y (x₁ - x₂)): the first is to rank higher where y = 1.
---@param input1 nnscaler.Tensor
---@param input2 nnscaler.Tensor
---@param target nnscaler.Tensor of 1 and -1
---@param options? { reduction?: string, margin?: number } margin: 0
---@return nnscaler.Tensor
function M.margin_ranking_loss(input1, input2, target, options)
  local o = margin_ranking_loss(options)
  local apart = aten.mul(aten.neg(target), aten.sub(input1, input2))
  return reduce(hinge(apart + (o.margin or 0)), o, 'margin_ranking_loss')
end

local hinge_embedding_loss = reader('hinge_embedding_loss', { 'margin', 'reduction' })
--- x where y = 1, max(0, margin - x) where y = -1.
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor of 1 and -1
---@param options? { reduction?: string, margin?: number } margin: 1
---@return nnscaler.Tensor
function M.hinge_embedding_loss(input, target, options)
  local o = hinge_embedding_loss(options)
  local far = hinge(aten.rsub(input, o.margin or 1))
  local loss = aten.add(aten.masked_fill(far, aten.eq(target, 1), 0),
    aten.masked_fill(input, aten.eq(target, -1), 0))
  return reduce(loss, o, 'hinge_embedding_loss')
end

local cosine_embedding_loss = reader('cosine_embedding_loss', { 'margin', 'reduction' })
--- 1 - cos where y = 1, max(0, cos - margin) where y = -1.
---@param input1 nnscaler.Tensor [batch, width] or [width]
---@param input2 nnscaler.Tensor
---@param target nnscaler.Tensor of 1 and -1, [batch] or []
---@param options? { reduction?: string, margin?: number } margin: 0
---@return nnscaler.Tensor
function M.cosine_embedding_loss(input1, input2, target, options)
  local o = cosine_embedding_loss(options)
  local function dot(a, b) return aten.sum(aten.mul(a, b), { -1 }) end
  local sizes = aten.mul(dot(input1, input1) + 1e-12, dot(input2, input2) + 1e-12)
  local cosine = aten.div(dot(input1, input2), aten.sqrt(sizes))
  local far = hinge(cosine - (o.margin or 0))
  local loss = aten.add(aten.masked_fill(1 - cosine, aten.ne(target, 1), 0),
    aten.masked_fill(far, aten.ne(target, -1), 0))
  return reduce(loss, o, 'cosine_embedding_loss')
end

---@class nnscaler.TripletOptions: nnscaler.LossOptions
---@field margin? number 1
---@field swap? boolean whether the positive may stand for the anchor where it is nearer

local function triplet(anchor, positive, negative, apart, o, what)
  local near, far = apart(anchor, positive), apart(anchor, negative)
  if o.swap then far = aten.minimum(far, apart(positive, negative)) end
  return reduce(hinge(aten.sub(near, far) + (o.margin or 1)), o, what)
end

local triplet_margin_loss = reader('triplet_margin_loss',
  { 'eps', 'margin', 'p', 'reduction', 'swap' })
--- max(0, margin + ‖a - p‖ - ‖a - n‖).
---@param anchor nnscaler.Tensor [..., width]
---@param positive nnscaler.Tensor
---@param negative nnscaler.Tensor
---@param options? nnscaler.TripletOptions with p (2) and eps (1e-6) of the norm
---@return nnscaler.Tensor
function M.triplet_margin_loss(anchor, positive, negative, options)
  local o = triplet_margin_loss(options)
  return triplet(anchor, positive, negative, function(a, b)
    return distance.pairwise_distance(a, b, o.p or 2, o.eps or 1e-6)
  end, o, 'triplet_margin_loss')
end

local with_distance = reader('triplet_margin_with_distance_loss',
  { 'distance_function', 'margin', 'reduction', 'swap' })
--- The same with a distance of one's own.
---@param anchor nnscaler.Tensor
---@param positive nnscaler.Tensor
---@param negative nnscaler.Tensor
---@param options? nnscaler.TripletOptions with distance_function: fun(a, b); ‖a - b‖ by default
---@return nnscaler.Tensor
function M.triplet_margin_with_distance_loss(anchor, positive, negative, options)
  local o = with_distance(options)
  return triplet(anchor, positive, negative, o.distance_function or distance.pairwise_distance, o,
    'triplet_margin_with_distance_loss')
end

local soft_margin_loss = reader('soft_margin_loss', { 'reduction' })
--- log(1 + exp(-y x)).
---@param input nnscaler.Tensor
---@param target nnscaler.Tensor of 1 and -1
---@param options? { reduction?: string }
---@return nnscaler.Tensor
function M.soft_margin_loss(input, target, options)
  local o = soft_margin_loss(options)
  return reduce(aten.log1p(aten.exp(aten.mul(aten.neg(target), input))), o, 'soft_margin_loss')
end

local multilabel_soft_margin_loss = reader('multilabel_soft_margin_loss', { 'reduction', 'weight' })
--- Binary cross entropy of every class, the mean over classes.
---@param input nnscaler.Tensor [..., classes]
---@param target nnscaler.Tensor of 0 and 1
---@param options? nnscaler.LossOptions
---@return nnscaler.Tensor
function M.multilabel_soft_margin_loss(input, target, options)
  local o = multilabel_soft_margin_loss(options)
  local each = aten.neg(aten.add(aten.mul(target, aten.log_sigmoid(input)),
    aten.mul(1 - target, aten.log_sigmoid(aten.neg(input)))))
  if o.weight then each = aten.mul(each, o.weight) end
  return reduce(aten.mean(each, { -1 }), o, 'multilabel_soft_margin_loss')
end

local multi_margin_loss = reader('multi_margin_loss', { 'margin', 'p', 'reduction', 'weight' })
--- Mean over the other classes of max(0, margin - x[label] + x[class]) ^ p.
---@param input nnscaler.Tensor [batch, classes]
---@param target nnscaler.Tensor int64 [batch]
---@param options? nnscaler.LossOptions with p (1 or 2; 1) and margin (1)
---@return nnscaler.Tensor
function M.multi_margin_loss(input, target, options)
  local o = multi_margin_loss(options)
  return aten.multi_margin_loss(input, target, o.p or 1, o.margin or 1, o.weight,
    arguments.reduction(o, 'multi_margin_loss'))
end

local multilabel_margin_loss = reader('multilabel_margin_loss', { 'reduction' })
--- The same for several labels a sample, which end at the first -1.
---@param input nnscaler.Tensor [batch, classes]
---@param target nnscaler.Tensor int64 [batch, classes]
---@param options? { reduction?: string }
---@return nnscaler.Tensor
function M.multilabel_margin_loss(input, target, options)
  return aten.multilabel_margin_loss(input, target,
    arguments.reduction(multilabel_margin_loss(options), 'multilabel_margin_loss'))
end

return M
