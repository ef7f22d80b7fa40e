--- DeepSeek-V2: attention whose keys and values are made of one narrow value a token, with a rotary
--- part of the keys that all heads share; and experts, some of them chosen by a router, some that
--- every token goes to. The architecture only; names are those of the family on Hugging Face.
local F = require 'nnscaler.functional'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local experts = require 'nnscaler.models.experts'
local fail = require 'nnscaler.fail'
local language = require 'nnscaler.models.language'
local nn = require 'nnscaler.nn'
local rope = require 'nnscaler.models.rope'

local AREA = 'models.deepseek'

local function linear(a, inputs, outputs)
  return nn.Linear(inputs, outputs, { bias = false, init = nn.init.normal(0, a.std) })
end

local Attention = nn.class 'Attention'

function Attention:init(a)
  self.a = a
  self.q_proj = linear(a, a.width, a.heads * (a.head_dim + a.rope_dim))
  self.kv_a_proj_with_mqa = linear(a, a.width, a.kv_rank + a.rope_dim)
  self.kv_a_layernorm = nn.RMSNorm(a.kv_rank, { eps = a.eps })
  self.kv_b_proj = linear(a, a.kv_rank, a.heads * (a.head_dim + a.value_dim))
  self.o_proj = linear(a, a.heads * a.value_dim, a.width)
end

function Attention:forward(x, rotary)
  local a, batch, time = self.a, unpack(x.shape)
  local cos, sin = rotary:tables(time)
  local function heads(y, first, second)
    y = y:view { batch, time, a.heads, first + second }:transpose(1, 2)
    return y:narrow(-1, 0, first), y:narrow(-1, first, second)
  end
  local q, q_rope = heads(self.q_proj(x), a.head_dim, a.rope_dim)
  local narrow = self.kv_a_proj_with_mqa(x)
  local k_rope = narrow:narrow(-1, a.kv_rank, a.rope_dim):unsqueeze(1)
  local k, v = heads(self.kv_b_proj(self.kv_a_layernorm(narrow:narrow(-1, 0, a.kv_rank))),
    a.head_dim, a.value_dim)
  local shared = rope.rotate(k_rope, cos, sin):expand { batch, a.heads, time, a.rope_dim }
  q = aten.cat({ q, rope.rotate(q_rope, cos, sin) }, -1)
  k = aten.cat({ k, shared }, -1)
  local y = aten.scaled_dot_product_attention(q, k, v, { is_causal = true })
  return self.o_proj(y:transpose(1, 2):reshape { batch, time, a.heads * a.value_dim })
end

local MLP = nn.class 'MLP'

function MLP:init(a, hidden)
  self.gate_proj, self.up_proj = linear(a, a.width, hidden), linear(a, a.width, hidden)
  self.down_proj = linear(a, hidden, a.width)
end

function MLP:forward(x) return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)) end

-- The experts that a router chooses, and those that all tokens go to, which are one wide MLP.
local Mixture = nn.class 'Mixture'

function Mixture:init(a)
  self.routed = experts.layer(a.width, a.expert_hidden, a.experts, nn.init.normal(0, a.std))
  if a.shared > 0 then self.shared_experts = MLP(a, a.shared * a.expert_hidden) end
end

function Mixture:forward(x)
  local y, addend = self.routed(x)
  return self.shared_experts and y + self.shared_experts(x) or y, addend
end

local Layer = nn.class 'Layer'

function Layer:init(a, dense)
  self.input_layernorm = nn.RMSNorm(a.width, { eps = a.eps })
  self.self_attn = Attention(a)
  self.post_attention_layernorm = nn.RMSNorm(a.width, { eps = a.eps })
  self.mlp = dense and MLP(a, a.hidden) or Mixture(a)
end

function Layer:forward(x, rotary)
  x = x + self.self_attn(self.input_layernorm(x), rotary)
  local y, addend = self.mlp(self.post_attention_layernorm(x))
  return x + y, addend
end

---@class nnscaler.models.DeepSeek : nnscaler.nn.Module
local DeepSeek = nn.class 'DeepSeek'
DeepSeek.forward_arg_names = { 'x', 'y' }

--- Sizes by name.
DeepSeek.configs = {
  ['v2-lite'] = { vocab = 102400, layers = 27, heads = 16, width = 2048, hidden = 10944,
    block = 4096, head_dim = 128, rope_dim = 64, value_dim = 128, kv_rank = 512,
    expert_hidden = 1408, shared = 2, dense_layers = 1,
    experts = { count = 64, chosen = 6, normalize = false, balance = 0.001 } },
}

---@param a { vocab: integer, layers: integer, heads: integer, width: integer, hidden: integer,
---   block: integer, head_dim: integer, rope_dim: integer, value_dim: integer, kv_rank: integer,
---   expert_hidden: integer, experts: nnscaler.models.Experts, shared?: integer,
---   dense_layers?: integer, theta?: number, eps?: number, std?: number, loss_chunk?: integer }
---   hidden: inner width of the feed-forward part of the first `dense_layers` (1), which have no
---   experts; block: the longest text, in tokens; head_dim and rope_dim: widths of the parts of a
---   head without and with positions; kv_rank: width of what keys and values are made of; shared:
---   experts that all tokens go to; loss_chunk: tokens whose logits exist at a time in the loss
function DeepSeek:init(a)
  a = check.options(AREA, a, { vocab = check.none, layers = check.none, heads = check.none,
    width = check.none, hidden = check.none, block = check.none, head_dim = check.none,
    rope_dim = check.none, value_dim = check.none, kv_rank = check.none,
    expert_hidden = check.none, experts = check.none, shared = 0, dense_layers = 1,
    theta = 10000, eps = 1e-6, std = 0.02, loss_chunk = check.none })
  for _, name in ipairs { 'vocab', 'layers', 'heads', 'width', 'hidden', 'block', 'head_dim',
    'rope_dim', 'value_dim', 'kv_rank', 'expert_hidden' } do
    check.integer(AREA, name, a[name])
  end
  check.integer(AREA, 'shared', a.shared, 0)
  check.integer(AREA, 'dense_layers', a.dense_layers, 0)
  if a.rope_dim % 2 ~= 0 then
    fail('usage', AREA, ('rope_dim = %d; expected an even number: pairs are turned'):format(
      a.rope_dim))
  end
  self.block, self.vocab, self.arguments = a.block, a.vocab, a
  self.loss_chunk = language.loss_chunk(AREA, a.loss_chunk)
  self.embed_tokens = nn.Embedding(a.vocab, a.width, { init = nn.init.normal(0, a.std) })
  self.rotary_emb = rope.Rotary { block = a.block, head_dim = a.rope_dim, theta = a.theta }
  self.layers = nn.ModuleList()
  for i = 1, a.layers do self.layers:append(Layer(a, i <= a.dense_layers)) end
  self.norm = nn.RMSNorm(a.width, { eps = a.eps })
  self.lm_head = linear(a, a.width, a.vocab)
  self.loss = nn.CrossEntropy()
end

DeepSeek.forward = language.forward(AREA, function(self, x)
  local hidden, addends = self.embed_tokens(x), {}
  for _, layer in ipairs(self.layers) do
    hidden, addends[#addends + 1] = layer(hidden, self.rotary_emb)
  end
  return self.norm(hidden), experts.mean(addends)
end)

return DeepSeek
