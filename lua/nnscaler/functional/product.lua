--- Products with weights: linear and bilinear maps, convolutions, attention, rows of tables.
local arguments = require 'nnscaler.functional.arguments'
local aten = require('nnscaler.ops').aten
local fail = require 'nnscaler.fail'

local M = {}

--- x·Wᵀ + b over the last dimension.
---@param input nnscaler.Tensor
---@param weight nnscaler.Tensor [out, in]
---@param bias? nnscaler.Tensor
---@return nnscaler.Tensor
function M.linear(input, weight, bias) return aten.linear(input, weight, bias) end

--- x₁ᵀ W x₂ + b over the last dimensions.
---@param input1 nnscaler.Tensor [..., in1]
---@param input2 nnscaler.Tensor [..., in2]
---@param weight nnscaler.Tensor [out, in1, in2]
---@param bias? nnscaler.Tensor [out]
---@return nnscaler.Tensor # [..., out]
function M.bilinear(input1, input2, weight, bias)
  local y = aten.einsum('...i,oij,...j->...o', { input1, weight, input2 })
  return bias and aten.add(y, bias) or y
end

--- Rows of a table by integer indices.
---@param input nnscaler.Tensor int64
---@param weight nnscaler.Tensor [rows, width]
---@param options? { padding_idx?: integer } padding_idx: the row that gets no gradient
---@return nnscaler.Tensor
function M.embedding(input, weight, options)
  return aten.embedding(weight, input, options and options.padding_idx)
end

local modes = { sum = 0, mean = 1, max = 2 }

---@class nnscaler.EmbeddingBagOptions
---@field mode? 'sum'|'mean'|'max' mean
---@field per_sample_weights? nnscaler.Tensor as the input; of 'sum' only
---@field include_last_offset? boolean whether the last offset is the length of the input
---@field padding_idx? integer index that counts for nothing

local embedding_bag = arguments.reader('embedding_bag',
  { 'include_last_offset', 'mode', 'padding_idx', 'per_sample_weights' })
--- Sum, mean or greatest of the rows of each bag of indices.
---@param input nnscaler.Tensor int64 [bags, length], or [indices] with offsets
---@param weight nnscaler.Tensor [rows, width]
---@param offsets? nnscaler.Tensor int64 [bags], where each bag begins
---@param options? nnscaler.EmbeddingBagOptions
---@return nnscaler.Tensor # [bags, width]
function M.embedding_bag(input, weight, offsets, options)
  local o = embedding_bag(options)
  local mode = arguments.choice('embedding_bag', 'mode', o.mode or 'mean', { 'max', 'mean', 'sum' })
  if o.per_sample_weights and mode ~= 'sum' then
    fail('model', 'functional.embedding_bag', ("per_sample_weights with mode '%s'; expected 'sum'")
      :format(mode))
  end
  if input:dim() == 1 and offsets then
    return (aten.embedding_bag(weight, input, offsets, false, modes[mode], false,
      o.per_sample_weights, o.include_last_offset or false, o.padding_idx))
  elseif input:dim() ~= 2 or offsets then
    fail('model', 'functional.embedding_bag', ('indices of %d dimensions %s offsets; expected '
      .. '[bags, length] without, or [indices] with'):format(input:dim(),
      offsets and 'with' or 'without'))
  end
  local rows = aten.embedding(weight, input, o.padding_idx)
  local padding = o.padding_idx and aten.unsqueeze(aten.eq(input, o.padding_idx), -1)
  if mode == 'max' then
    if not padding then return aten.amax(rows, { 1 }) end
    local most = aten.amax(aten.masked_fill(rows, padding, -math.huge), { 1 })
    return aten.masked_fill(most, aten.all(padding, 1), 0)
  end
  if o.per_sample_weights then rows = rows * aten.unsqueeze(o.per_sample_weights, -1) end
  if padding then rows = aten.masked_fill(rows, padding, 0) end
  if mode == 'sum' then return aten.sum(rows, { 1 }) end
  if not padding then return aten.mean(rows, { 1 }) end
  local count = aten.sum(aten.logical_not(padding), { 1 })
  return aten.div(aten.sum(rows, { 1 }), aten.to(aten.clamp_min(count, 1), rows.dtype))
end

---@param input nnscaler.Tensor int64
---@param num_classes? integer
---@return nnscaler.Tensor
function M.one_hot(input, num_classes) return aten.one_hot(input, num_classes or -1) end

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
---@field output_padding? integer|integer[] of transposed ones: sizes added to the result

local spread = arguments.spread

local function convolution(name, n)
  local call = aten[name]
  local read = arguments.reader(name, { 'dilation', 'groups', 'padding', 'stride' })
  return function(input, weight, bias, options)
    local o = read(options)
    return call(input, weight, bias, spread(o.stride or 1, n), spread(o.padding or 0, n),
      spread(o.dilation or 1, n), o.groups or 1)
  end
end

local function transposed(name, n)
  local call = aten[name]
  local read = arguments.reader(name,
    { 'dilation', 'groups', 'output_padding', 'padding', 'stride' })
  return function(input, weight, bias, options)
    local o = read(options)
    return call(input, weight, bias, spread(o.stride or 1, n), spread(o.padding or 0, n),
      spread(o.output_padding or 0, n), o.groups or 1, spread(o.dilation or 1, n))
  end
end

--- Convolutions (cross-correlations) over 1, 2 and 3 dimensions; weights [out, in / groups, …].
---@alias nnscaler.Convolution fun(input, weight, bias?, options?: nnscaler.ConvOptions): any
---@type nnscaler.Convolution
M.conv1d = convolution('conv1d', 1)
M.conv2d = convolution('conv2d', 2)
M.conv3d = convolution('conv3d', 3)

--- The gradients of convolutions with regard to their inputs; weights [in, out / groups, …].
---@type nnscaler.Convolution
M.conv_transpose1d = transposed('conv_transpose1d', 1)
M.conv_transpose2d = transposed('conv_transpose2d', 2)
M.conv_transpose3d = transposed('conv_transpose3d', 3)

return M
