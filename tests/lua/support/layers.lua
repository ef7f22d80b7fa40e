--- A transformer of equal layers in the shape of LLaMA's, and a plan for it as the user would write
--- it: columns then rows inside each layer, an equal share of the layers a stage.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local nn = require 'nnscaler.nn'
local policies = require 'nnscaler.policies'
local recompute = require 'nnscaler.recompute'
local trace = require 'nnscaler.trace'

local M = {}

local plain = { bias = false }

local Attention = nn.class 'Attention'
function Attention:init(a)
  self.heads, self.size = a.heads, a.width / a.heads
  for _, name in ipairs { 'q_proj', 'k_proj', 'v_proj', 'o_proj' } do
    self[name] = nn.Linear(a.width, a.width, plain)
  end
end
function Attention:forward(x)
  local batch, time, width = unpack(x.shape)
  local function heads(y) return y:view { batch, time, self.heads, self.size }:transpose(1, 2) end
  local q, k, v = heads(self.q_proj(x)), heads(self.k_proj(x)), heads(self.v_proj(x))
  local y = aten.scaled_dot_product_attention(q, k, v, { is_causal = true })
  return self.o_proj(y:transpose(1, 2):reshape { batch, time, width })
end

local Mlp = nn.class 'Mlp'
function Mlp:init(a, activation)
  self.activation = activation or F.silu
  self.gate_proj = nn.Linear(a.width, a.inner, plain)
  self.up_proj = nn.Linear(a.width, a.inner, plain)
  self.down_proj = nn.Linear(a.inner, a.width, plain)
end
function Mlp:forward(x)
  return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
end

local Block = nn.class 'Block'
function Block:init(a, activation)
  self.input_layernorm = nn.LayerNorm(a.width, plain)
  self.self_attn = Attention(a)
  self.post_attention_layernorm = nn.LayerNorm(a.width, plain)
  self.mlp = Mlp(a, activation)
end
function Block:forward(x)
  x = x + self.self_attn(self.input_layernorm(x))
  return x + self.mlp(self.post_attention_layernorm(x))
end

local Model = nn.class 'Transformer'

--- `alternate` gives every second layer another activation, `recompute` runs layers again in
--- backward, `skip` adds the output of layer 0 to that of the last.
---@param a { vocab: integer, layers: integer, heads: integer, width: integer, inner: integer,
---   alternate?: boolean, recompute?: boolean, skip?: boolean }
function Model:init(a)
  self.options = a
  self.embed_tokens = nn.Embedding(a.vocab, a.width)
  self.layers = nn.ModuleList()
  for i = 1, a.layers do
    self.layers:append(Block(a, a.alternate and i % 2 == 0 and F.gelu or nil))
  end
  self.norm = nn.LayerNorm(a.width, plain)
  self.lm_head = nn.Linear(a.width, a.vocab, plain)
  self.loss = nn.CrossEntropy()
end
function Model:forward(sample)
  local h, first = self.embed_tokens(sample.x), nil
  for _, block in ipairs(self.layers) do
    h = self.options.recompute and recompute(block, h) or block(h)
    first = first or h
  end
  if self.options.skip then h = h + first end
  local loss, tokens = self.loss(self.lm_head(self.norm(h)), sample.y)
  return loss, { tokens = tokens }
end

--- The model; small unless told.
---@return nnscaler.nn.Module
function M.model(options)
  local a = { vocab = 64, layers = 4, heads = 4, width = 16, inner = 32 }
  for key, value in next, options or {} do a[key] = value end
  return Model(a)
end

--- The training graph for samples of this size.
---@return userdata graph
function M.graph(model, batch, time)
  local x = T.empty({ batch or 2, time or 8 }, { dtype = 'int64' })
  return (trace.trace(model, { { x = x, y = x }, n = 1 }))
end

local places = {
  q_proj = { input = 1, dim = 0 }, k_proj = { input = 1, dim = 0 }, v_proj = { input = 1, dim = 0 },
  gate_proj = { input = 1, dim = 0 }, up_proj = { input = 1, dim = 0 },
  o_proj = { input = 0, dim = 2 }, down_proj = { input = 0, dim = 2 }, mlp = { input = 0, dim = 2 },
}
local heads_first, heads_last = { input = 0, dim = 1 }, { input = 0, dim = 2 }

-- Where a call of an attention module is cut, so that each part has some of the heads; `after` is
-- whether it follows the attention itself.
local function heads_of(node, after)
  if node.name == 'narrow' then return nil end -- of the tables of angles
  if node.name == 'reshape' then return heads_last end
  return (node.name == 'transpose' and not after) and heads_last or heads_first
end

local function layer_of(node) return tonumber(node.module:match 'layers%.(%d+)') end

-- An equal share of the layers a stage.
local function cut_stages(graph, list, stages, each)
  local layers = 0
  for _, node in ipairs(list) do layers = math.max(layers, (layer_of(node) or -1) + 1) end
  local first, devices, share = {}, {}, layers / stages
  for _, node in ipairs(list) do
    if layer_of(node) == (#first + 1) * share then first[#first + 1] = node end
  end
  for s = 0, stages - 1 do
    devices[s + 1] = {}
    for k = 0, each - 1 do devices[s + 1][k + 1] = s * each + k end
  end
  graph:stage(first, devices)
end

--- Cuts the layers of a stage over its devices and the layers over the stages.
function M.policy(graph, cfg)
  local stages = cfg.pas_config.pipeline_nstages or 1
  local each, list = cfg.plan_ngpus / stages, graph:nodes()
  if stages > 1 then
    cut_stages(graph, list, stages, each)
    graph:schedule('1f1b', math.max(stages, cfg.micro_batches or 1))
  end
  local attended = {}
  for _, node in ipairs(list) do
    local layer, name = layer_of(node), node.module:match '([%w_]+)$'
    local where = layer and places[name]
    if layer and name == 'self_attn' then
      where = heads_of(node, attended[layer])
      attended[layer] = attended[layer] or node.name == 'scaled_dot_product_attention'
    end
    if where and each > 1 then graph:partition(node, where, each) end
  end
  graph:replicate_rest()
end

--- The plan of M.policy.
---@param graph userdata
---@param tp integer
---@param pp integer
---@param dp? integer
---@return userdata plan
function M.plan(graph, tp, pp, dp)
  return policies.run(graph, M.policy, { plan_ngpus = tp * pp, runtime_ngpus = tp * pp * (dp or 1),
    pas_config = { pipeline_nstages = pp }, micro_batches = pp })
end

return M
