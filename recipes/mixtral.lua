--- A small Mixtral from random weights on a text, token = character: attention as LLaMA's, and of
--- each block's experts two for a token. Under `megatron` each device has some of the experts.
---
---   nnscaler run recipes/mixtral.lua
---   nnscaler run recipes/mixtral.lua -n 2 pas_policy=megatron compute_config.plan_ngpus=2
local nnscaler = require 'nnscaler'
local Llama = require 'nnscaler.models.llama'

local p = nnscaler.params {
  data = { nnscaler.data.shakespeare, 'text file to learn' },
  layers = { 2, 'number of blocks', min = 1 },
  block = { 64, 'context length in tokens', min = 1 },
  width = { 64, 'width of the model, 4 heads', min = 8 },
  experts = { 8, 'experts of a block', min = 2 },
  capacity = { 0, 'how much of its even share an expert takes; 0: all', min = 0 },
}
local text = nnscaler.data.characters(p.data, { block = p.block, validation = 0.1 })

return {
  name = 'mixtral',
  model = function()
    return Llama { vocab = text.vocab, layers = p.layers, heads = 4, kv_heads = 2,
      width = p.width, hidden = 2 * p.width, block = p.block, experts = { count = p.experts,
        balance = 0.02, capacity = p.capacity > 0 and p.capacity or nil } }
  end,
  dataset = text,
  micro_batch_size = 8,
  max_train_steps = 300,
  val_every_n_train_steps = 100,
  max_val_steps = 20,
  optimizer = { type = 'adamw', args = { lr = 1e-3, betas = { 0.9, 0.95 }, weight_decay = 0.1 },
    clip_gnorm = 1.0 },
  lr_scheduler = { type = 'cosine', args = { warmup_steps = 20, min_lr = 1e-4 } },
}
