--- LLaMA 3 from random weights on a text, token = character in the small presets, or from those of
--- a model folder. The large presets are for planning and compiling: their tokens are drawn at
--- random.
---
---   nnscaler run recipes/llama3.lua                                        seconds
---   nnscaler run recipes/llama3.lua preset=mini                            minutes
---   nnscaler run recipes/llama3.lua from=Llama-3.2-1B data=tokens sequence_length=2048
---   nnscaler compile recipes/llama3.lua preset=8b pas_policy=tp compute_config.runtime_ngpus=4
local nnscaler = require 'nnscaler'
local Llama = require 'nnscaler.models.llama'
local prepared = require 'nnscaler.data.prepared'

local presets = {
  tiny = { sizes = { layers = 2, heads = 4, kv_heads = 2, width = 32, hidden = 96, block = 32 },
    batch = 4, steps = 200 },
  small = { sizes = { layers = 6, heads = 6, kv_heads = 2, width = 192, hidden = 512, block = 128 },
    batch = 12, steps = 2000 },
  mini = { sizes = Llama.configs.mini, batch = 4, steps = 1000 },
  ['1b'] = { sizes = Llama.configs['llama3.2-1b'], batch = 1, steps = 1 },
  ['8b'] = { sizes = Llama.configs['llama3-8b'], batch = 1, steps = 1 },
  ['70b'] = { sizes = Llama.configs['llama3-70b'], batch = 1, steps = 1 },
  ['405b'] = { sizes = Llama.configs['llama3-405b'], batch = 1, steps = 1 },
}

local preset = presets[nnscaler.params {
  preset = { 'tiny', 'size of the model and of the run',
    choices = { 'tiny', 'small', 'mini', '1b', '8b', '70b', '405b' } },
}.preset]

local sizes = {}
for _, key in ipairs { 'vocab', 'layers', 'heads', 'kv_heads', 'width', 'hidden', 'block',
  'theta', 'tied', 'rope_scaling' } do
  sizes[key] = preset.sizes[key]
end

local p = nnscaler.params {
  data = { nnscaler.data.shakespeare, 'text that tiny, small and mini learn, or a token folder' },
  from = { '', 'model folder of Hugging Face to go on from, in place of the preset' },
  layers = { sizes.layers, 'number of blocks', min = 1 },
  sequence_length = { sizes.block, 'context length in tokens', min = 1 },
}
sizes.layers, sizes.block = p.layers, p.sequence_length
sizes.loss_chunk = nnscaler.params {
  loss_chunk = { sizes.block < 32768 and 0 or 1024, 'tokens with logits at once, 0: all', min = 0 },
}.loss_chunk
if sizes.loss_chunk == 0 then sizes.loss_chunk = nil end

local data
if prepared.is_folder(p.data) then
  data = nnscaler.data.tokens(p.data, { block = sizes.block, validation = 0.1 })
  sizes.vocab = data.vocab
elseif sizes.vocab then
  data = nnscaler.data.random_tokens { vocab = sizes.vocab, block = sizes.block }
else
  data = nnscaler.data.characters(p.data, { block = sizes.block, validation = 0.1 })
  sizes.vocab = data.vocab
end

return {
  name = 'llama3',
  model = function()
    if p.from == '' then return Llama(sizes) end
    return nnscaler.from_pretrained(p.from, { block = sizes.block, dtype = 'float32',
      loss_chunk = sizes.loss_chunk })
  end,
  dataset = data,
  micro_batch_size = preset.batch,
  max_train_steps = preset.steps,
  val_every_n_train_steps = 100,
  max_val_steps = 20,
  optimizer = {
    type = 'adamw',
    args = {
      lr = 1e-3, betas = { 0.9, 0.95 }, weight_decay = 0.1,
      groups = { { match = '*norm*', weight_decay = 0 } }, -- only matrices decay
    },
    clip_gnorm = 1.0,
  },
  lr_scheduler = { type = 'cosine', args = { warmup_steps = 20, min_lr = 1e-4 } },
}
