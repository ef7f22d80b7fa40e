--- BERT learns the masked tokens of a text: its characters in the preset tiny, or the tokens of a
--- folder that `nnscaler data prepare` wrote; from random weights, or those of a model folder.
---
---   nnscaler run recipes/bert.lua                                         minutes
---   nnscaler run recipes/bert.lua from=bert-base-uncased data=tokens block=128
---   nnscaler plan recipes/bert.lua preset=large pas_policy=autodist --hardware h100 --world 8
local nnscaler = require 'nnscaler'
local BERT = require 'nnscaler.models.bert'
local prepared = require 'nnscaler.data.prepared'

local presets = {
  tiny = { sizes = { layers = 4, heads = 4, width = 128, hidden = 512, block = 64, dropout = 0 },
    batch = 16, steps = 3000, lr = 1e-3 },
  base = { sizes = BERT.configs.base, batch = 8, steps = 1000, lr = 1e-4 },
  large = { sizes = BERT.configs.large, batch = 8, steps = 1000, lr = 1e-4 },
}
local preset = presets[nnscaler.params {
  preset = { 'tiny', 'size of the model and of the run', choices = { 'tiny', 'base', 'large' } },
}.preset]
local p = nnscaler.params {
  data = { nnscaler.data.shakespeare, 'text file, or a folder of tokens' },
  from = { '', 'model folder of Hugging Face to go on from, in place of the preset' },
  layers = { preset.sizes.layers, 'number of layers', min = 1 },
  width = { preset.sizes.width, 'width of the model', min = 1 },
  block = { preset.sizes.block, 'tokens of a text', min = 1 },
}

local data
if prepared.is_folder(p.data) then
  local tokens = nnscaler.data.tokens(p.data, { block = p.block })
  data = nnscaler.data.masked(tokens, { mask = nnscaler.data.tokenizer(p.data):id '[MASK]' })
else
  data = nnscaler.data.masked(nnscaler.data.characters(p.data, { block = p.block }))
end

local sizes = preset.sizes
return {
  name = 'bert',
  model = function()
    if p.from ~= '' then return nnscaler.from_pretrained(p.from, { dtype = 'float32' }) end
    return BERT { vocab = data.vocab, layers = p.layers, heads = sizes.heads, width = p.width,
      hidden = sizes.hidden, block = p.block, dropout = sizes.dropout }
  end,
  dataset = data,
  micro_batch_size = preset.batch,
  max_train_steps = preset.steps,
  val_every_n_train_steps = 500,
  max_val_steps = 100,
  optimizer = { type = 'adamw', args = { lr = preset.lr, betas = { 0.9, 0.98 },
    groups = { { match = { '*.LayerNorm.*', '*.bias' }, weight_decay = 0 } } }, clip_gnorm = 1.0 },
  lr_scheduler = { type = 'linear', args = { warmup_steps = math.floor(preset.steps / 10) } },
}
