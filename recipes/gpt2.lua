--- GPT-2 goes on from the weights of a model folder of Hugging Face, on the tokens that
--- `nnscaler data prepare` wrote with the folder's tokenizer.
---
---   nnscaler data prepare corpus --tokenizer gpt2 --eos '<|endoftext|>' --out tokens
---   nnscaler run recipes/gpt2.lua from=gpt2 data=tokens -n 2 pas_policy=megatron \
---     compute_config.plan_ngpus=2
---   nnscaler checkpoint export checkpoints/last tuned
---   nnscaler generate tuned --prompt 'Once upon a time' --tokens 100
local nnscaler = require 'nnscaler'

local p = nnscaler.params {
  from = { 'gpt2', 'model folder of Hugging Face' },
  data = { 'tokens', 'folder of tokens, made with the tokenizer of the model' },
  block = { 256, 'tokens of a text', min = 1 },
  dropout = { 0.1, 'share of activations dropped while training', min = 0 },
}

return {
  name = 'gpt2',
  model = function()
    return nnscaler.from_pretrained(p.from, { dropout = p.dropout, dtype = 'float32' })
  end,
  dataset = nnscaler.data.tokens(p.data, { block = p.block, validation = 0.1 }),
  micro_batch_size = 4,
  global_batch_size = 16,
  max_train_steps = 200,
  val_every_n_train_steps = 50,
  max_val_steps = 20,
  optimizer = {
    type = 'adamw',
    args = { lr = 5e-5, weight_decay = 0.1,
      groups = { { match = { '*.ln_*', '*.bias' }, weight_decay = 0 } } },
    clip_gnorm = 1.0,
  },
  lr_scheduler = { type = 'linear', args = { warmup_steps = 10 } },
}
