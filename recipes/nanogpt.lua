--- A GPT learns to write like the text it reads, character by character.
---
---   nnscaler run recipes/nanogpt.lua                       works of Shakespeare, a small model
---   nnscaler run recipes/nanogpt.lua preset=baby data=my.txt layers=8
---   nnscaler generate checkpoints/last --tokens 400
local nnscaler = require 'nnscaler'
local GPT = require 'nnscaler.models.gpt'

local presets = {
  -- for trying things out: seconds
  tiny = { layers = 4, heads = 4, width = 64, block = 32, dropout = 0, batch = 4, steps = 1000 },
  -- nanoGPT's setting for a laptop: minutes. Biases, as GPT-2 has, are worth 0.01 of loss here.
  cpu = { layers = 4, heads = 4, width = 128, block = 64, dropout = 0, batch = 12, steps = 2000,
    bias = true },
  -- nanoGPT's train_shakespeare_char
  baby = { layers = 6, heads = 6, width = 384, block = 256, dropout = 0.2, batch = 64,
    steps = 5000 },
}

local preset = presets[nnscaler.params {
  preset = { 'cpu', 'size of the model and of the run', choices = { 'tiny', 'cpu', 'baby' } },
}.preset]

local p = nnscaler.params {
  data = { nnscaler.data.shakespeare, 'text file to learn' },
  layers = { preset.layers, 'number of blocks', min = 1 },
  heads = { preset.heads, 'attention heads of a block', min = 1 },
  width = { preset.width, 'embedding width', min = 1 },
  block = { preset.block, 'context length in tokens', min = 1 },
  dropout = { preset.dropout, 'share of activations dropped while training', min = 0 },
}

local text = nnscaler.data.characters(p.data, { block = p.block, validation = 0.1 })

return {
  name = 'nanogpt',
  model = function()
    return GPT {
      vocab = text.vocab, layers = p.layers, heads = p.heads, width = p.width, block = p.block,
      dropout = p.dropout, bias = preset.bias,
    }
  end,
  dataset = text,
  micro_batch_size = preset.batch,
  max_train_steps = preset.steps,
  val_every_n_train_steps = 250,
  optimizer = {
    type = 'adamw',
    args = {
      lr = 1e-3, betas = { 0.9, 0.99 }, weight_decay = 0.1,
      groups = { -- only matrices decay
        { match = preset.bias and { '*.ln_*', '*.bias' } or '*.ln_*', weight_decay = 0 },
      },
    },
    clip_gnorm = 1.0,
  },
  lr_scheduler = { type = 'cosine', args = { warmup_steps = 100, min_lr = 1e-4 } },
  checkpoint = { every_n_train_steps = 500, keep_last_n_checkpoints = 2 },
}
