--- BERT (Devlin 2018) with the head that tells masked tokens. Names of parameters are those of
--- BertForMaskedLM of the transformers library.
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local nn = require 'nnscaler.nn'

local function linear(a, inputs, outputs)
  return nn.Linear(inputs, outputs,
    { init = nn.init.normal(0, a.std), bias_init = nn.init.zeros() })
end

local function norm(a) return nn.LayerNorm(a.width, { eps = a.eps }) end

local Embeddings = nn.class 'Embeddings'

function Embeddings:init(a)
  local options = { init = nn.init.normal(0, a.std) }
  self.word_embeddings = nn.Embedding(a.vocab, a.width, options)
  self.position_embeddings = nn.Embedding(a.block, a.width, options)
  self.token_type_embeddings = nn.Embedding(a.types, a.width, options)
  self.LayerNorm = norm(a)
  self.dropout = nn.Dropout(a.dropout)
end

function Embeddings:forward(x, types)
  local kind = types and self.token_type_embeddings(types)
    or self.token_type_embeddings.weight:narrow(0, 0, 1)
  local place = self.position_embeddings.weight:narrow(0, 0, x.shape[2])
  return self.dropout(self.LayerNorm(self.word_embeddings(x) + kind + place))
end

local SelfAttention = nn.class 'SelfAttention'

function SelfAttention:init(a)
  self.heads = a.heads
  self.dropout = a.dropout
  for _, name in ipairs { 'query', 'key', 'value' } do
    self[name] = linear(a, a.width, a.width)
  end
end

function SelfAttention:forward(x, mask)
  local function heads(y) return y:unflatten(-1, { self.heads, -1 }):transpose(1, 2) end
  local y = aten.scaled_dot_product_attention(heads(self.query(x)), heads(self.key(x)),
    heads(self.value(x)), mask, self.training and self.dropout or 0)
  return y:transpose(1, 2):flatten(-2)
end

-- Where a part joins the residual stream.
local Output = nn.class 'Output'

function Output:init(a, inputs)
  self.dense = linear(a, inputs, a.width)
  self.LayerNorm = norm(a)
  self.dropout = nn.Dropout(a.dropout)
end

function Output:forward(x, beside) return self.LayerNorm(self.dropout(self.dense(x)) + beside) end

local Layer = nn.class 'Layer'

function Layer:init(a)
  self.attention = nn.ModuleDict()
  self.attention.self = SelfAttention(a)
  self.attention.output = Output(a, a.width)
  self.intermediate = nn.ModuleDict()
  self.intermediate.dense = linear(a, a.width, a.hidden)
  self.intermediate.act = nn.GELU { approximate = a.gelu }
  self.output = Output(a, a.hidden)
end

function Layer:forward(x, mask)
  x = self.attention.output(self.attention.self(x, mask), x)
  return self.output(self.intermediate.act(self.intermediate.dense(x)), x)
end

local Head = nn.class 'Head'

function Head:init(a, words)
  self.bias = nn.Parameter { shape = { a.vocab } }
  self.transform = nn.ModuleDict()
  self.transform.dense = linear(a, a.width, a.width)
  self.transform.act = nn.GELU { approximate = a.gelu }
  self.transform.LayerNorm = norm(a)
  self.decoder = linear(a, a.width, a.vocab)
  self.decoder.bias = self.bias
  self.decoder.weight = words
end

function Head:forward(x)
  local t = self.transform
  return self.decoder(t.LayerNorm(t.act(t.dense(x))))
end

---@class nnscaler.models.BERT : nnscaler.nn.Module
local BERT = nn.class 'BERT'
BERT.forward_arg_names = { 'x', 'y', 'types', 'mask' }

--- Sizes by name.
BERT.configs = {
  base = { vocab = 30522, layers = 12, heads = 12, width = 768, hidden = 3072, block = 512 },
  large = { vocab = 30522, layers = 24, heads = 16, width = 1024, hidden = 4096, block = 512 },
}

---@param a { vocab: integer, layers: integer, heads: integer, width: integer, hidden: integer,
---   block: integer, types?: integer, dropout?: number, gelu?: 'none'|'tanh', eps?: number,
---   std?: number } hidden: inner width of the feed-forward part; block: the longest text, in
---   tokens; types: kinds of tokens, 2 by default; std: of the first weights
function BERT:init(a)
  local area = 'models.bert'
  a = check.options(area, a, { vocab = check.none, layers = check.none, heads = check.none,
    width = check.none, hidden = check.none, block = check.none, types = 2, dropout = 0.1,
    gelu = 'none', eps = 1e-12, std = 0.02 })
  for _, name in ipairs { 'vocab', 'layers', 'heads', 'width', 'hidden', 'block', 'types' } do
    check.integer(area, name, a[name])
  end
  if a.width % a.heads ~= 0 then
    fail('usage', area, ('%d heads do not divide width %d'):format(a.heads, a.width))
  end
  check.probability(area, a.dropout)
  self.block, self.vocab, self.arguments = a.block, a.vocab, a
  self.bert = nn.ModuleDict()
  self.bert.embeddings = Embeddings(a)
  self.bert.encoder = nn.ModuleDict()
  self.bert.encoder.layer = nn.ModuleList()
  for _ = 1, a.layers do self.bert.encoder.layer:append(Layer(a)) end
  self.cls = nn.ModuleDict()
  self.cls.predictions = Head(a, self.bert.embeddings.word_embeddings.weight)
  self.loss = nn.CrossEntropy()
end

--- With targets: the mean loss over those that are not -100, and how many they are; without: nil
--- and the logits [batch, time, vocab].
---@param x nnscaler.Tensor|{ x: nnscaler.Tensor, y?: nnscaler.Tensor, types?: nnscaler.Tensor,
---   mask?: nnscaler.Tensor } tokens [batch, time]
---@param y? nnscaler.Tensor
---@param types? nnscaler.Tensor kinds of the tokens; by default all 0
---@param mask? nnscaler.Tensor [batch, time], 0 where there is no token
---@return nnscaler.Tensor|nil loss, { tokens: nnscaler.Tensor }|nnscaler.Tensor
function BERT:forward(x, y, types, mask)
  if type(x) == 'table' then x, y, types, mask = x.x, x.y, x.types, x.mask end
  if x.shape[2] > self.block then
    fail('model', 'models.bert', ('a text of %d tokens; expected at most block = %d'):format(
      x.shape[2], self.block))
  end
  mask = mask and mask:ne(0):unsqueeze(1):unsqueeze(1)
  local hidden = self.bert.embeddings(x, types)
  for _, layer in ipairs(self.bert.encoder.layer) do hidden = layer(hidden, mask) end
  local scores = self.cls.predictions(hidden)
  if not y then return nil, scores end
  local loss, tokens = self.loss(scores, y)
  return loss, { tokens = tokens }
end

return BERT
