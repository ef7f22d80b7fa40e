--- BERT of the `transformers` library. Our model has its names; older files call scale and shift of
--- normalisations gamma and beta.
local M = { class = 'nnscaler.models.bert', model_types = { bert = 'BertForMaskedLM' } }

local activations = { gelu = 'none', gelu_new = 'tanh', gelu_pytorch_tanh = 'tanh' }

-- One share for all dropouts.
local function dropout(c)
  local share = c.values.hidden_dropout_prob or 0.1
  if type(share) ~= 'number' or share < 0 or share > 1 then
    c:refuse('hidden_dropout_prob', 'a share from 0 to 1')
  end
  c:only('attention_probs_dropout_prob', { share })
  return share
end

--- What the Lua model is made with.
---@param c nnscaler.hugging_face.Config
---@return table
function M.arguments(c)
  local act = c.values.hidden_act or 'gelu'
  if not activations[act] then c:refuse('hidden_act', 'gelu, gelu_new or gelu_pytorch_tanh') end
  c:only('position_embedding_type', { 'absolute' })
  c:only('is_decoder', { false })
  c:only('add_cross_attention', { false })
  c:only('tie_word_embeddings', { true })
  return {
    vocab = c:integer 'vocab_size', layers = c:integer 'num_hidden_layers',
    heads = c:integer 'num_attention_heads', width = c:integer 'hidden_size',
    hidden = c:integer 'intermediate_size', block = c:integer 'max_position_embeddings',
    types = c:integer('type_vocab_size', 2), dropout = dropout(c), gelu = activations[act],
    eps = c:number('layer_norm_eps', 1e-12), std = c:number('initializer_range', 0.02),
  }
end

--- What config.json says of a model that was made with these arguments.
---@param a table
---@return table
function M.config(a)
  return {
    model_type = 'bert', vocab_size = a.vocab, num_hidden_layers = a.layers,
    num_attention_heads = a.heads, hidden_size = a.width, intermediate_size = a.hidden,
    max_position_embeddings = a.block, type_vocab_size = a.types, hidden_dropout_prob = a.dropout,
    attention_probs_dropout_prob = a.dropout, layer_norm_eps = a.eps, initializer_range = a.std,
    hidden_act = a.gelu == 'tanh' and 'gelu_new' or 'gelu', tie_word_embeddings = true,
  }
end

-- What files of other heads hold beside ours, and tables that the model computes.
local left_out = { '^bert%.pooler%.', '^cls%.seq_relationship%.', '%.position_ids$' }

--- What finds the number of its layer in the name of a weight.
M.layer = '^bert%.encoder%.layer%.(%d+)%.'

--- The name in the model of a tensor of a file; nil: nothing of this model.
---@param name string
---@return string|nil
function M.ours(name)
  for _, pattern in ipairs(left_out) do
    if name:find(pattern) then return nil end
  end
  return (name:gsub('LayerNorm%.gamma$', 'LayerNorm.weight')
    :gsub('LayerNorm%.beta$', 'LayerNorm.bias'))
end

--- The name in a file of a weight of the model, and whether the file holds it transposed.
---@param name string
---@return string name, boolean transposed
function M.stored(name) return name, false end

return M
