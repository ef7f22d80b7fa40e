--- LLaMA 2 and 3: rotary positions, RMSNorm, gated SiLU feed-forward, grouped key and value heads;
--- with biases of query, key and value it is Qwen 2, with experts in place of the feed-forward part
--- Mixtral. The architecture only; names of parameters are those of the family on Hugging Face.
local F = require 'nnscaler.functional'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local experts = require 'nnscaler.models.experts'
local fail = require 'nnscaler.fail'
local language = require 'nnscaler.models.language'
local nn = require 'nnscaler.nn'
local rope = require 'nnscaler.models.rope'

local function linear(a, inputs, outputs, bias)
  return nn.Linear(inputs, outputs,
    { bias = bias or false, init = nn.init.normal(0, a.std), bias_init = nn.init.zeros() })
end

local Attention = nn.class 'Attention'

function Attention:init(a)
  self.heads, self.kv_heads, self.head_dim = a.heads, a.kv_heads, a.head_dim
  self.q_proj = linear(a, a.width, a.heads * a.head_dim, a.qkv_bias)
  self.k_proj = linear(a, a.width, a.kv_heads * a.head_dim, a.qkv_bias)
  self.v_proj = linear(a, a.width, a.kv_heads * a.head_dim, a.qkv_bias)
  self.o_proj = linear(a, a.heads * a.head_dim, a.width)
end

function Attention:forward(x, rotary, cache)
  local batch, time = unpack(x.shape)
  local function heads(y, count)
    return y:view { batch, time, count, self.head_dim }:transpose(1, 2)
  end
  local cos, sin = rotary:tables(time, cache and cache:first())
  local q = rope.rotate(heads(self.q_proj(x), self.heads), cos, sin)
  local k = rope.rotate(heads(self.k_proj(x), self.kv_heads), cos, sin)
  local v = heads(self.v_proj(x), self.kv_heads)
  local y = cache and cache:attend(q, k, v) or aten.scaled_dot_product_attention(q, k, v,
    { is_causal = true, enable_gqa = self.kv_heads ~= self.heads })
  return self.o_proj(y:transpose(1, 2):reshape { batch, time, self.heads * self.head_dim })
end

local MLP = nn.class 'MLP'

function MLP:init(a)
  self.gate_proj = linear(a, a.width, a.hidden)
  self.up_proj = linear(a, a.width, a.hidden)
  self.down_proj = linear(a, a.hidden, a.width)
end

function MLP:forward(x) return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)) end

local Layer = nn.class 'Layer'

function Layer:init(a)
  self.input_layernorm = nn.RMSNorm(a.width, { eps = a.eps })
  self.self_attn = Attention(a)
  self.post_attention_layernorm = nn.RMSNorm(a.width, { eps = a.eps })
  if a.experts then
    self.block_sparse_moe = experts.layer(a.width, a.hidden, a.experts, nn.init.normal(0, a.std))
  else
    self.mlp = MLP(a)
  end
end

function Layer:forward(x, rotary, cache)
  x = x + self.self_attn(self.input_layernorm(x), rotary, cache)
  local y, addend = (self.mlp or self.block_sparse_moe)(self.post_attention_layernorm(x))
  return x + y, addend
end

local Body = nn.class 'Body'

function Body:init(a)
  self.embed_tokens = nn.Embedding(a.vocab, a.width, { init = nn.init.normal(0, a.std) })
  self.rotary_emb = rope.Rotary(a)
  self.layers = nn.ModuleList()
  for _ = 1, a.layers do self.layers:append(Layer(a)) end
  self.norm = nn.RMSNorm(a.width, { eps = a.eps })
end

function Body:forward(x, cache)
  local hidden, addends = self.embed_tokens(x), {}
  for i, layer in ipairs(self.layers) do
    hidden, addends[#addends + 1] = layer(hidden, self.rotary_emb, cache and cache:layer(i))
  end
  return self.norm(hidden), experts.mean(addends)
end

---@class nnscaler.models.Llama : nnscaler.nn.Module
local Llama = nn.class 'Llama'
Llama.forward_arg_names = { 'x', 'y' }

--- Sizes by name; `block` is the longest text that the model was made for. `mini` takes the
--- vocabulary of its data.
Llama.configs = {
  mini = { layers = 4, heads = 8, kv_heads = 4, width = 256, hidden = 704, block = 256,
    theta = 500000 },
  ['llama2-7b'] = { vocab = 32000, layers = 32, heads = 32, width = 4096, hidden = 11008,
    block = 4096, theta = 10000 },
  ['llama3.2-1b'] = { vocab = 128256, layers = 16, heads = 32, kv_heads = 8, width = 2048,
    hidden = 8192, block = 8192, theta = 500000, tied = true,
    rope_scaling = { type = 'llama3', factor = 32, low_freq_factor = 1, high_freq_factor = 4,
      original = 8192 } },
  ['llama3-8b'] = { vocab = 128256, layers = 32, heads = 32, kv_heads = 8, width = 4096,
    hidden = 14336, block = 8192, theta = 500000 },
  ['llama3-70b'] = { vocab = 128256, layers = 80, heads = 64, kv_heads = 8, width = 8192,
    hidden = 28672, block = 8192, theta = 500000 },
  ['llama3-405b'] = { vocab = 128256, layers = 126, heads = 128, kv_heads = 8, width = 16384,
    hidden = 53248, block = 8192, theta = 500000 },
}

---@param a { vocab: integer, layers: integer, heads: integer, width: integer, hidden: integer,
---   block: integer, kv_heads?: integer, head_dim?: integer, theta?: number, eps?: number,
---   std?: number, tied?: boolean, qkv_bias?: boolean, rope_scaling?: { type:
---   'linear'|'llama3'|'longrope', factor?: number, low_freq_factor?: number,
---   high_freq_factor?: number, original?: integer, short_factor?: number[],
---   long_factor?: number[], attention_factor?: number }, loss_chunk?: integer,
---   experts?: nnscaler.models.Experts }
---   hidden: inner width of the feed-forward part; block:
---   the longest text, in tokens; theta: base of the rotary frequencies; std: of the first weights;
---   tied: the output layer uses the token embedding; qkv_bias: query, key and value have biases;
---   rope_scaling: slows turns, for texts longer than the `original` tokens of the training;
---   loss_chunk: tokens whose logits exist at a time in the loss, by default all; experts: of each
---   block, with `hidden` as their inner width
function Llama:init(a)
  local area = 'models.llama'
  a = check.options(area, a, { vocab = check.none, layers = check.none, heads = check.none,
    width = check.none, hidden = check.none, block = check.none, kv_heads = check.none,
    head_dim = check.none, theta = 500000, eps = 1e-5, std = 0.02, tied = false,
    qkv_bias = false, rope_scaling = check.none, loss_chunk = check.none,
    experts = check.none })
  for _, name in ipairs { 'vocab', 'layers', 'heads', 'width', 'hidden', 'block' } do
    check.integer(area, name, a[name])
  end
  if not a.head_dim and a.width % a.heads ~= 0 then
    fail('usage', area, ('%d heads do not divide width %d'):format(a.heads, a.width))
  end
  a.head_dim = check.integer(area, 'head_dim', a.head_dim or a.width / a.heads)
  a.kv_heads = check.integer(area, 'kv_heads', a.kv_heads or a.heads)
  if a.heads % a.kv_heads ~= 0 then
    fail('usage', area, ('%d key and value heads do not divide %d query heads'):format(a.kv_heads,
      a.heads), 'each key and value head serves the same number of query heads')
  end
  if a.head_dim % 2 ~= 0 then
    fail('usage', area, ('head_dim = %d; expected an even number: pairs are turned'):format(
      a.head_dim))
  end
  if a.rope_scaling then rope.check(area, a) end
  self.block, self.vocab, self.arguments = a.block, a.vocab, a
  self.loss_chunk = language.loss_chunk('models.llama', a.loss_chunk)
  self.model = Body(a)
  self.short_block = self.model.rotary_emb.short
  self.lm_head = linear(a, a.width, a.vocab)
  if a.tied then self.lm_head.weight = self.model.embed_tokens.weight end
  self.loss = nn.CrossEntropy()
end

Llama.forward = language.forward('models.llama', function(self, x, _, cache)
  return self.model(x, cache)
end)
Llama.new_cache = language.new_cache

return Llama
