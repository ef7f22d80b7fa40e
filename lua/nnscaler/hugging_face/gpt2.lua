--- GPT-2 of the `transformers` library. Its projections are kept as [inputs, outputs], transposed
--- to ours, query, key and value side by side.
local M = { class = 'nnscaler.models.gpt', model_types = { gpt2 = 'GPT2LMHeadModel' } }

local activations = { gelu_new = 'tanh', gelu_pytorch_tanh = 'tanh', gelu = 'none' }

-- One share for all dropouts.
local function dropout(c)
  local share
  for _, key in ipairs { 'resid_pdrop', 'embd_pdrop', 'attn_pdrop' } do
    local value = c.values[key] or 0.1
    if type(value) ~= 'number' or value < 0 or value > 1 or value ~= (share or value) then
      c:refuse(key, 'one share, from 0 to 1, for resid_pdrop, embd_pdrop and attn_pdrop')
    end
    share = value
  end
  return share
end

--- What the Lua model is made with.
---@param c nnscaler.hugging_face.Config
---@return table
function M.arguments(c)
  local act = c.values.activation_function or 'gelu_new'
  if not activations[act] then
    c:refuse('activation_function', 'gelu_new, gelu_pytorch_tanh or gelu')
  end
  c:only('scale_attn_weights', { true })
  c:only('scale_attn_by_inverse_layer_idx', { false })
  c:only('add_cross_attention', { false })
  local width = c:integer 'n_embd'
  c:only('n_inner', { 4 * width })
  return {
    vocab = c:integer 'vocab_size', layers = c:integer 'n_layer', heads = c:integer 'n_head',
    width = width, block = c:integer 'n_positions', dropout = dropout(c), bias = true,
    gelu = activations[act], eps = c:number('layer_norm_epsilon', 1e-5),
    tied = c:flag('tie_word_embeddings', true),
  }
end

--- What config.json says of a model that was made with these arguments. The format has no form
--- without biases: `missing` names what it needs.
---@param a table
---@return table|nil config, string|nil missing
function M.config(a)
  if not a.bias then return nil, 'bias = true: GPT-2 has no form without biases' end
  return {
    model_type = 'gpt2', vocab_size = a.vocab, n_layer = a.layers, n_head = a.heads,
    n_embd = a.width, n_positions = a.block, n_ctx = a.block, resid_pdrop = a.dropout,
    embd_pdrop = a.dropout, attn_pdrop = a.dropout, layer_norm_epsilon = a.eps,
    activation_function = a.gelu == 'tanh' and 'gelu_new' or 'gelu', initializer_range = 0.02,
    tie_word_embeddings = a.tied,
  }
end

--- What finds the number of its layer in the name of a weight.
M.layer = '^transformer%.h%.(%d+)%.'

--- The name in the model of a tensor of a file; nil: a table that the model computes.
---@param name string
---@return string|nil
function M.ours(name)
  if name:find '%.attn%.bias$' or name:find '%.attn%.masked_bias$' then return nil end
  if name == 'lm_head.weight' or name:find '^transformer%.' then return name end
  return 'transformer.' .. name -- files of the bare model
end

--- The name in a file of a weight of the model, and whether the file holds it transposed.
---@param name string
---@return string name, boolean transposed
function M.stored(name) return name, name:find '%.c_%w+%.weight$' ~= nil end

return M
