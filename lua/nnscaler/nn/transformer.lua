--- The encoder and decoder layers of "Attention Is All You Need" (Vaswani 2017) with PyTorch's
--- names. Masks are PyTorch's: true where a query may not look, or numbers added to the scores.
local Dropout = require('nnscaler.nn.dropout').Dropout
local F = require 'nnscaler.functional'
local LayerNorm = require('nnscaler.nn.norm').LayerNorm
local Linear = require('nnscaler.nn.linear').Linear
local Module = require 'nnscaler.nn.module'
local ModuleList = require('nnscaler.nn.container').ModuleList
local MultiHeadAttention = require('nnscaler.nn.attention').MultiHeadAttention
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'
local sorted = require 'nnscaler.sorted'

local M = {}

local defaults = { dim_feedforward = 2048, dropout = 0.1, activation = 'relu',
  layer_norm_eps = 1e-5, batch_first = false, norm_first = false, bias = true, dtype = 'float32' }

-- What both kinds of layer have; `norms` layer norms and dropouts.
local function set_up(self, d_model, nhead, options, norms)
  local area = 'nn.' .. self.class_name
  check.integer(area, 'd_model', d_model)
  check.integer(area, 'nhead', nhead)
  if d_model % nhead ~= 0 then
    fail('usage', area, ('%d heads do not divide d_model %d'):format(nhead, d_model))
  end
  local o = check.options(area, options, defaults)
  check.integer(area, 'dim_feedforward', o.dim_feedforward)
  self.activation = o.activation
  if type(o.activation) ~= 'function' then
    self.activation = F[check.one_of(area, 'activation', o.activation, { 'relu', 'gelu' })]
  end
  self.batch_first, self.norm_first = o.batch_first, o.norm_first
  self.again = { d_model, nhead, options }
  local attention = { bias = o.bias, dropout = check.probability(area, o.dropout),
    dtype = o.dtype }
  self.self_attn = MultiHeadAttention(d_model, nhead, attention)
  if norms == 3 then self.multihead_attn = MultiHeadAttention(d_model, nhead, attention) end
  local linear = { bias = o.bias, dtype = o.dtype }
  self.linear1 = Linear(d_model, o.dim_feedforward, linear)
  self.dropout = Dropout(o.dropout)
  self.linear2 = Linear(o.dim_feedforward, d_model, linear)
  for i = 1, norms do
    self['norm' .. i] = LayerNorm(d_model, { eps = o.layer_norm_eps, bias = o.bias,
      dtype = o.dtype })
  end
  for i = 1, norms do self['dropout' .. i] = Dropout(o.dropout) end
end

-- The residual sum of what f makes of x, with norm and dropout number i.
local function add(self, i, x, f)
  local norm, dropout = self['norm' .. i], self['dropout' .. i]
  if self.norm_first then return x + dropout(f(norm(x))) end
  return norm(x + dropout(f(x)))
end

local function feed_forward(self, x)
  return self.linear2(self.dropout(self.activation(self.linear1(x))))
end

-- PyTorch's masks as MultiHeadAttention takes them: a mask of pairs, padded keys [batch, S] and
-- whether all is causal, for queries [batch, T, …] and keys [batch, S, …].
local function look(self, query, memory, mask, padding, causal)
  if not padding and (causal or not mask) then return { causal = causal or false } end
  if causal then
    mask = query:new_ones { query.shape[2], memory.shape[2] }:triu(1):gt(0)
  end
  if mask and mask:dim() == 3 then
    mask = mask:unflatten(0, { -1, self.self_attn.heads })
  end
  if padding then padding = padding:unsqueeze(1):unsqueeze(1) end
  local function is_bool(x) return x.dtype == 'bool' end
  local function score(x) -- numbers to add
    if not is_bool(x) then return x end
    return query:new_zeros(x.shape):masked_fill(x, -math.huge)
  end
  if not (mask and padding) then
    local one = mask or padding
    return { mask = is_bool(one) and one:logical_not() or one }
  elseif is_bool(mask) and is_bool(padding) then
    return { mask = mask:logical_or(padding):logical_not() }
  end
  return { mask = score(mask) + score(padding) }
end

local function attend(self, attention, x, memory, mask, padding, causal)
  return attention(x, memory, look(self, x, memory or x, mask, padding, causal))
end

-- Runs f on sequences with the batch first, and turns its result back.
local function batch_first(self, x, memory, f)
  if self.batch_first then return f(x, memory) end
  return f(x:transpose(0, 1), memory and memory:transpose(0, 1)):transpose(0, 1)
end

-- --- layers --------------------------------------------------------------------------------------

---@class nnscaler.TransformerOptions
---@field dim_feedforward? integer 2048
---@field dropout? number 0.1
---@field activation? 'relu'|'gelu'|fun(x): any relu
---@field layer_norm_eps? number 1e-5
---@field batch_first? boolean whether tensors are [batch, time, d_model], else [time, batch, …]
---@field norm_first? boolean whether norms come before attention and feed-forward, not after
---@field bias? boolean true
---@field dtype? string

--- Self-attention, then a feed-forward network, each with a residual sum and a norm.
---@class nnscaler.nn.TransformerEncoderLayer : nnscaler.nn.Module
M.TransformerEncoderLayer = Module.class 'TransformerEncoderLayer'

---@param d_model integer
---@param nhead integer must divide d_model
---@param options? nnscaler.TransformerOptions
function M.TransformerEncoderLayer:init(d_model, nhead, options)
  set_up(self, d_model, nhead, options, 2)
end

---@class nnscaler.EncoderMasks
---@field src_mask? nnscaler.Tensor [T, T] or [batch · heads, T, T]
---@field src_key_padding_mask? nnscaler.Tensor [batch, T], true at padding
---@field is_causal? boolean whether no query may look ahead; then src_mask need not be given

---@param src nnscaler.Tensor [T, batch, d_model], or [batch, T, d_model] with batch_first
---@param masks? nnscaler.EncoderMasks
---@return nnscaler.Tensor # shaped as src
function M.TransformerEncoderLayer:forward(src, masks)
  local m = check.options('nn.TransformerEncoderLayer', masks, { src_mask = check.none,
    src_key_padding_mask = check.none, is_causal = false })
  return batch_first(self, src, nil, function(x)
    x = add(self, 1, x, function(y)
      return attend(self, self.self_attn, y, nil, m.src_mask, m.src_key_padding_mask, m.is_causal)
    end)
    return add(self, 2, x, function(y) return feed_forward(self, y) end)
  end)
end

--- Self-attention, attention to a memory, then a feed-forward network, each with a residual sum and
--- a norm.
---@class nnscaler.nn.TransformerDecoderLayer : nnscaler.nn.Module
M.TransformerDecoderLayer = Module.class 'TransformerDecoderLayer'

---@param d_model integer
---@param nhead integer must divide d_model
---@param options? nnscaler.TransformerOptions
function M.TransformerDecoderLayer:init(d_model, nhead, options)
  set_up(self, d_model, nhead, options, 3)
end

local decoder_masks = { tgt_mask = check.none, memory_mask = check.none,
  tgt_key_padding_mask = check.none, memory_key_padding_mask = check.none, tgt_is_causal = false,
  memory_is_causal = false }

---@class nnscaler.DecoderMasks
---@field tgt_mask? nnscaler.Tensor [T, T] or [batch · heads, T, T]
---@field memory_mask? nnscaler.Tensor [T, S] or [batch · heads, T, S]
---@field tgt_key_padding_mask? nnscaler.Tensor [batch, T]
---@field memory_key_padding_mask? nnscaler.Tensor [batch, S]
---@field tgt_is_causal? boolean
---@field memory_is_causal? boolean

---@param tgt nnscaler.Tensor [T, batch, d_model], or [batch, T, d_model] with batch_first
---@param memory nnscaler.Tensor [S, batch, d_model], or [batch, S, d_model]
---@param masks? nnscaler.DecoderMasks
---@return nnscaler.Tensor # shaped as tgt
function M.TransformerDecoderLayer:forward(tgt, memory, masks)
  local m = check.options('nn.TransformerDecoderLayer', masks, decoder_masks)
  return batch_first(self, tgt, memory, function(x, context)
    x = add(self, 1, x, function(y)
      return attend(self, self.self_attn, y, nil, m.tgt_mask, m.tgt_key_padding_mask,
        m.tgt_is_causal)
    end)
    x = add(self, 2, x, function(y)
      return attend(self, self.multihead_attn, y, context, m.memory_mask,
        m.memory_key_padding_mask, m.memory_is_causal)
    end)
    return add(self, 3, x, function(y) return feed_forward(self, y) end)
  end)
end

-- --- stacks --------------------------------------------------------------------------------------

-- `layers`: as many as asked for, made as the given one was; a norm behind them.
local function stack(self, layer, class, num_layers, norm)
  local area = 'nn.' .. self.class_name
  check.integer(area, 'num_layers', num_layers)
  if kinds.of(layer) ~= 'module' or not layer:is(class) then
    fail('usage', area, ('its layer is a %s; expected a %s'):format(kinds.of(layer) == 'module'
      and layer.class_name or type(layer), class.class_name))
  end
  self.layers = ModuleList()
  for i = 1, num_layers do
    local again = layer.again
    self.layers:append(i == 1 and layer or getmetatable(layer).__index(unpack(again, 1, 3)))
  end
  self.norm = norm
end

-- Through all layers and the norm behind them.
local function through(self, x, ...)
  for _, layer in ipairs(self.layers) do x = layer(x, ...) end
  return self.norm and self.norm(x) or x
end

--- Encoder layers one after the other, all with the arguments of the one given.
---@class nnscaler.nn.TransformerEncoder : nnscaler.nn.Module
M.TransformerEncoder = Module.class 'TransformerEncoder'

---@param encoder_layer nnscaler.nn.TransformerEncoderLayer
---@param num_layers integer
---@param norm? nnscaler.nn.Module behind the last layer
function M.TransformerEncoder:init(encoder_layer, num_layers, norm)
  stack(self, encoder_layer, M.TransformerEncoderLayer, num_layers, norm)
end

---@param src nnscaler.Tensor
---@param masks? nnscaler.EncoderMasks
---@return nnscaler.Tensor
function M.TransformerEncoder:forward(src, masks) return through(self, src, masks) end

--- Decoder layers one after the other, all with the arguments of the one given.
---@class nnscaler.nn.TransformerDecoder : nnscaler.nn.Module
M.TransformerDecoder = Module.class 'TransformerDecoder'

---@param decoder_layer nnscaler.nn.TransformerDecoderLayer
---@param num_layers integer
---@param norm? nnscaler.nn.Module behind the last layer
function M.TransformerDecoder:init(decoder_layer, num_layers, norm)
  stack(self, decoder_layer, M.TransformerDecoderLayer, num_layers, norm)
end

---@param tgt nnscaler.Tensor
---@param memory nnscaler.Tensor
---@param masks? nnscaler.DecoderMasks
---@return nnscaler.Tensor
function M.TransformerDecoder:forward(tgt, memory, masks)
  return through(self, tgt, memory, masks)
end

--- Encoder and decoder; matrices begin with Glorot's uniform distribution.
---@class nnscaler.nn.Transformer : nnscaler.nn.Module
M.Transformer = Module.class 'Transformer'

---@param options? nnscaler.TransformerOptions with d_model (512), nhead (8), num_encoder_layers (6)
---   and num_decoder_layers (6)
function M.Transformer:init(options)
  local area, sizes, inner = 'nn.Transformer', { d_model = 512, nhead = 8, num_encoder_layers = 6,
    num_decoder_layers = 6 }, {}
  local all = {}
  for _, table_of in ipairs { sizes, defaults } do
    for name, value in sorted.sorted_pairs(table_of) do all[name] = value end
  end
  local o = check.options(area, options, all)
  for name in sorted.sorted_pairs(defaults) do inner[name] = o[name] end
  local function norm()
    return LayerNorm(o.d_model, { eps = o.layer_norm_eps, bias = o.bias, dtype = o.dtype })
  end
  self.encoder = M.TransformerEncoder(M.TransformerEncoderLayer(o.d_model, o.nhead, inner),
    o.num_encoder_layers, norm())
  self.decoder = M.TransformerDecoder(M.TransformerDecoderLayer(o.d_model, o.nhead, inner),
    o.num_decoder_layers, norm())
  for _, entry in ipairs(self:named_parameters()) do
    local shape = entry.file_shape or entry.param.shape
    if #shape > 1 then entry.param.init = init.xavier_uniform(shape[2], shape[1]) end
  end
end

---@class nnscaler.TransformerMasks : nnscaler.DecoderMasks
---@field src_mask? nnscaler.Tensor
---@field src_key_padding_mask? nnscaler.Tensor
---@field src_is_causal? boolean

---@param src nnscaler.Tensor [S, batch, d_model], or [batch, S, d_model] with batch_first
---@param tgt nnscaler.Tensor [T, batch, d_model], or [batch, T, d_model]
---@param masks? nnscaler.TransformerMasks
---@return nnscaler.Tensor # shaped as tgt
function M.Transformer:forward(src, tgt, masks)
  local names = { src_mask = check.none, src_key_padding_mask = check.none, src_is_causal = false }
  for name, value in sorted.sorted_pairs(decoder_masks) do names[name] = value end
  local m, inner = check.options('nn.Transformer', masks, names), {}
  for name in sorted.sorted_pairs(decoder_masks) do inner[name] = m[name] end
  local memory = self.encoder(src, { src_mask = m.src_mask,
    src_key_padding_mask = m.src_key_padding_mask, is_causal = m.src_is_causal })
  return self.decoder(tgt, memory, inner)
end

return M
