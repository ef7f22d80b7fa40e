--- A small DeepSeek-V2 from random weights on a text, token = character: keys and values made of
--- one narrow value a token, a rotary part of keys that all heads share, experts. The preset
--- v2-lite is for planning and compiling: its tokens are drawn at random.
---
---   nnscaler run recipes/deepseek.lua
---   nnscaler plan recipes/deepseek.lua preset=v2-lite pas_policy=megatron --world 8
local nnscaler = require 'nnscaler'
local DeepSeek = require 'nnscaler.models.deepseek'

local p = nnscaler.params {
  preset = { 'tiny', 'size of the model', choices = { 'tiny', 'v2-lite' } },
  data = { nnscaler.data.shakespeare, 'text file that the preset tiny learns' },
}

local sizes, data = DeepSeek.configs[p.preset]
if not sizes then
  sizes = { layers = 2, heads = 4, width = 64, hidden = 192, block = 64, head_dim = 16,
    rope_dim = 8, value_dim = 16, kv_rank = 32, expert_hidden = 48, shared = 1,
    experts = { count = 8, chosen = 2, normalize = false } }
end
if p.preset == 'tiny' then
  data = nnscaler.data.characters(p.data, { block = sizes.block, validation = 0.1 })
  sizes.vocab = data.vocab
else
  data = nnscaler.data.random_tokens { vocab = sizes.vocab, block = sizes.block }
  sizes.loss_chunk = 1024
end

return {
  name = 'deepseek',
  model = function() return DeepSeek(sizes) end,
  dataset = data,
  micro_batch_size = p.preset == 'tiny' and 8 or 1,
  max_train_steps = 300,
  val_every_n_train_steps = 100,
  max_val_steps = 20,
  optimizer = { type = 'adamw', args = { lr = 1e-3, betas = { 0.9, 0.95 }, weight_decay = 0.1 },
    clip_gnorm = 1.0 },
  lr_scheduler = { type = 'cosine', args = { warmup_steps = 20, min_lr = 1e-4 } },
}
