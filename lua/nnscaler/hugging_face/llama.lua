--- The Llama family of the `transformers` library: Llama 2 and 3, Mistral as far as its window
--- goes, Qwen 2, Mixtral. Our model has their names; of Mixtral's experts, which are tensors of
--- their own there, it has one stack a layer.
local M = {
  class = 'nnscaler.models.llama',
  model_types = { llama = 'LlamaForCausalLM', mistral = 'MistralForCausalLM',
    qwen2 = 'Qwen2ForCausalLM', mixtral = 'MixtralForCausalLM' },
}

-- Frequencies of the rotary embedding: { theta, scaling } of the two forms that files have.
local function rotary(c)
  local told = c.values.rope_parameters or c.values.rope_scaling
  if told ~= nil and type(told) ~= 'table' then
    c:refuse(c.values.rope_parameters and 'rope_parameters' or 'rope_scaling', 'an object')
  end
  told = told or {}
  if (told.partial_rotary_factor or c.values.partial_rotary_factor or 1) ~= 1 then
    c:refuse('rope_parameters', 'all of a head to be turned: partial_rotary_factor = 1')
  end
  local theta = told.rope_theta or c.values.rope_theta or 10000
  local kind = told.rope_type or told.type or 'default'
  if kind == 'default' then return theta, nil end
  if kind ~= 'llama3' and kind ~= 'linear' and kind ~= 'longrope' then
    c:refuse(c.values.rope_parameters and 'rope_parameters' or 'rope_scaling',
      'rope_type default, linear, llama3 or longrope')
  end
  local original = told.original_max_position_embeddings
    or c.values.original_max_position_embeddings
  local factor = told.factor
  if kind == 'longrope' and factor == nil and type(original) == 'number' and original > 0 then
    factor = c:integer 'max_position_embeddings' / original
  end
  return theta, { type = kind, factor = factor, low_freq_factor = told.low_freq_factor,
    high_freq_factor = told.high_freq_factor, original = original,
    short_factor = told.short_factor, long_factor = told.long_factor,
    attention_factor = told.attention_factor }
end

-- Experts of a layer; the balance of experts counts in the loss as config.json weighs it.
local function experts(c)
  c:only('router_jitter_noise', { 0 })
  local balance = c.values.router_aux_loss_coef or 0.001
  if type(balance) ~= 'number' or balance < 0 then
    c:refuse('router_aux_loss_coef', 'a number ≥ 0')
  end
  return { count = c:integer 'num_local_experts', chosen = c:integer('num_experts_per_tok', 2),
    balance = balance }
end

--- What the Lua model is made with.
---@param c nnscaler.hugging_face.Config
---@param block? integer the longest text, in place of the file's
---@return table
function M.arguments(c, block)
  c:only('hidden_act', { 'silu' })
  c:only('mlp_bias', { false })
  local qwen = c.values.model_type == 'qwen2'
  c:only('attention_bias', { false })
  block = block or c:integer 'max_position_embeddings'
  local window = not qwen and c.values.sliding_window
  if qwen then
    c:only('use_sliding_window', { false })
  elseif window and (type(window) ~= 'number' or window < block) then
    c:refuse('sliding_window', ('null, or no shorter than the block of %d'):format(block))
  end
  local theta, scaling = rotary(c)
  return {
    vocab = c:integer 'vocab_size', layers = c:integer 'num_hidden_layers',
    heads = c:integer 'num_attention_heads', width = c:integer 'hidden_size',
    kv_heads = c:integer('num_key_value_heads', c:integer 'num_attention_heads'),
    head_dim = c.values.head_dim and c:integer 'head_dim' or nil,
    hidden = c:integer 'intermediate_size', block = block,
    eps = c:number('rms_norm_eps', 1e-6), std = c:number('initializer_range', 0.02),
    tied = c:flag('tie_word_embeddings', false), theta = theta, rope_scaling = scaling,
    qkv_bias = qwen, experts = c.values.model_type == 'mixtral' and experts(c) or nil,
  }
end

-- What the format cannot say of experts, or nil.
local function unlike_mixtral(a)
  local e = a.experts
  if a.qkv_bias then return 'qkv_bias = false: Mixtral has no biases' end
  if e.normalize == false or (e.scale or 1) ~= 1 or e.capacity or (e.z or 0) ~= 0 then
    return 'experts with no settings but count, chosen and balance, as Mixtral has them'
  end
end

--- What config.json says of a model that was made with these arguments; `missing` says why there is
--- no form for it.
---@param a table
---@return table|nil config, string|nil missing
function M.config(a)
  local e = a.experts
  local missing = e and unlike_mixtral(a)
  if missing then return nil, missing end
  local s = a.rope_scaling or {}
  local function rope(theta)
    return { rope_type = s.type or 'default', rope_theta = theta, factor = s.factor,
      low_freq_factor = s.low_freq_factor, high_freq_factor = s.high_freq_factor,
      original_max_position_embeddings = s.original, short_factor = s.short_factor,
      long_factor = s.long_factor, attention_factor = s.attention_factor }
  end
  return {
    model_type = e and 'mixtral' or a.qkv_bias and 'qwen2' or 'llama', vocab_size = a.vocab,
    num_hidden_layers = a.layers, num_attention_heads = a.heads, hidden_size = a.width,
    num_key_value_heads = a.kv_heads, head_dim = a.head_dim, intermediate_size = a.hidden,
    max_position_embeddings = a.block, rms_norm_eps = a.eps, initializer_range = a.std,
    tie_word_embeddings = a.tied, rope_theta = a.theta, rope_parameters = rope(a.theta),
    rope_scaling = a.rope_scaling and rope() or nil, -- as versions before 5 of the library read it
    hidden_act = 'silu', attention_bias = false, mlp_bias = false,
    use_sliding_window = a.qkv_bias and false or nil, num_local_experts = e and e.count,
    num_experts_per_tok = e and (e.chosen or 2), router_aux_loss_coef = e and (e.balance or 0.01),
    router_jitter_noise = e and 0,
  }
end

--- What finds the number of its layer in the name of a weight.
M.layer = '^model%.layers%.(%d+)%.'

--- The name in the model of a tensor of a file; nil: a table that the model computes. With it, of
--- an expert, its place in the stack.
---@param name string
---@return string|nil ours, integer|nil place
function M.ours(name)
  if name:find 'rotary_emb%.inv_freq$' then return nil end
  local before, place, weight = name:match '^(.*%.block_sparse_moe%.)experts%.(%d+)%.(w%d)%.weight$'
  if place then return before .. weight, tonumber(place) end
  return name
end

--- The name in a file of a weight of the model, and whether the file holds it transposed. Of a
--- stack of experts, the name with %d for the expert.
---@param name string
---@return string name, boolean transposed
function M.stored(name)
  local before, weight = name:match '^(.*%.block_sparse_moe%.)(w%d)$'
  if before then return before .. 'experts.%d.' .. weight .. '.weight', false end
  return name, false
end

return M
