--- A GPT as nanoGPT builds it: learned positions, normalisation before each part of a block, output
--- weights tied to the token embedding. Names of parameters are those of GPT-2.
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local language = require 'nnscaler.models.language'
local nn = require 'nnscaler.nn'

-- GPT-2's first weights of a linear layer.
local function start(a, std)
  return { bias = a.bias, init = nn.init.normal(0, std or 0.02), bias_init = nn.init.zeros() }
end

-- Layers that end in the residual stream start smaller, the more of them there are.
local function projection(a, inputs)
  return nn.Linear(inputs, a.width, start(a, 0.02 / math.sqrt(2 * a.layers)))
end

local Attention = nn.class 'Attention'

function Attention:init(a)
  self.heads, self.dropout = a.heads, a.dropout
  self.c_attn = nn.FusedLinear(a.width, a.width, 3, start(a)) -- query, key, value
  self.c_proj = projection(a, a.width)
  self.resid_dropout = nn.Dropout(a.dropout)
end

function Attention:forward(x, cache)
  local batch, time, width = unpack(x.shape)
  local parts = { self.c_attn(x) }
  for i, part in ipairs(parts) do
    parts[i] = part:view { batch, time, self.heads, width / self.heads }:transpose(1, 2)
  end
  local q, k, v = unpack(parts)
  local y = cache and cache:attend(q, k, v) or aten.scaled_dot_product_attention(q, k, v,
    { is_causal = true, dropout_p = self.training and self.dropout or 0 })
  y = self.c_proj(y:transpose(1, 2):reshape { batch, time, width })
  return self.resid_dropout(y)
end

local MLP = nn.class 'MLP'

function MLP:init(a)
  self.c_fc = nn.Linear(a.width, 4 * a.width, start(a))
  self.gelu = nn.GELU { approximate = a.gelu }
  self.c_proj = projection(a, 4 * a.width)
  self.dropout = nn.Dropout(a.dropout)
end

function MLP:forward(x)
  x = self.gelu(self.c_fc(x))
  x = self.c_proj(x)
  return self.dropout(x)
end

local Block = nn.class 'Block'

function Block:init(a)
  self.ln_1 = nn.LayerNorm(a.width, { bias = a.bias, eps = a.eps })
  self.attn = Attention(a)
  self.ln_2 = nn.LayerNorm(a.width, { bias = a.bias, eps = a.eps })
  self.mlp = MLP(a)
end

function Block:forward(x, cache)
  x = x + self.attn(self.ln_1(x), cache)
  return x + self.mlp(self.ln_2(x))
end

---@class nnscaler.models.GPT : nnscaler.nn.Module
local GPT = nn.class 'GPT'
GPT.forward_arg_names = { 'x', 'y' }

---@param a { vocab: integer, layers: integer, heads: integer, width: integer, block: integer,
---   dropout?: number, bias?: boolean, tied?: boolean, gelu?: 'none'|'tanh', eps?: number,
---   loss_chunk?: integer } block: the longest text, in tokens; tied: the output layer uses the
---   token embedding (default); gelu: its approximation, 'tanh' in GPT-2; eps: of the
---   normalisations; loss_chunk: tokens whose logits exist at a time in the loss, by default all
function GPT:init(a)
  a = check.options('models.gpt', a, { vocab = check.none, layers = check.none,
    heads = check.none, width = check.none, block = check.none, dropout = 0, bias = false,
    tied = true, gelu = 'none', eps = 1e-5, loss_chunk = check.none })
  for _, name in ipairs { 'vocab', 'layers', 'heads', 'width', 'block' } do
    check.integer('models.gpt', name, a[name])
  end
  if a.width % a.heads ~= 0 then
    fail('usage', 'models.gpt', ('%d heads do not divide width %d'):format(a.heads, a.width))
  end
  self.block, self.vocab, self.arguments = a.block, a.vocab, a
  self.loss_chunk = language.loss_chunk('models.gpt', a.loss_chunk)
  local embedding = { init = nn.init.normal(0, 0.02) }
  self.transformer = nn.ModuleDict()
  self.transformer.wte = nn.Embedding(a.vocab, a.width, embedding)
  self.transformer.wpe = nn.Embedding(a.block, a.width, embedding)
  self.transformer.drop = nn.Dropout(a.dropout)
  self.transformer.h = nn.ModuleList()
  for _ = 1, a.layers do self.transformer.h:append(Block(a)) end
  self.transformer.ln_f = nn.LayerNorm(a.width, { bias = a.bias, eps = a.eps })
  self.lm_head = nn.Linear(a.width, a.vocab, { bias = false, init = embedding.init })
  if a.tied then self.lm_head.weight = self.transformer.wte.weight end
  self.loss = nn.CrossEntropy()
end

GPT.forward = language.forward('models.gpt', function(self, x, time, cache)
  local t = self.transformer
  local first = cache and cache.length or 0
  local hidden = t.drop(t.wte(x) + t.wpe.weight:narrow(0, first, time))
  for i, block in ipairs(t.h) do hidden = block(hidden, cache and cache:layer(i)) end
  return (t.ln_f(hidden)) -- not a tail call: its place in the source stays known
end)
GPT.new_cache = language.new_cache

return GPT
