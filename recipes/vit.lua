--- ViT tells drawn shapes apart; the large presets are for planning: their images are as large as
--- those of ImageNet.
---
---   nnscaler run recipes/vit.lua                                          minutes
---   nnscaler compile recipes/vit.lua preset=base pas_policy=megatron compute_config.plan_ngpus=2
local nnscaler = require 'nnscaler'
local ViT = require 'nnscaler.models.vit'

local presets = {
  tiny = { sizes = { patch = 4, layers = 4, heads = 4, width = 64 }, image = 32, batch = 32,
    steps = 1000 },
  base = { sizes = ViT.configs.base, image = 224, batch = 8, steps = 100 },
  large = { sizes = ViT.configs.large, image = 224, batch = 8, steps = 100 },
}
local preset = presets[nnscaler.params {
  preset = { 'tiny', 'size of the model and of the run', choices = { 'tiny', 'base', 'large' } },
}.preset]
local p = nnscaler.params {
  layers = { preset.sizes.layers, 'number of blocks', min = 1 },
  width = { preset.sizes.width, 'width of the model', min = 1 },
  image = { preset.image, 'pixels of a side', min = 4 },
}

return {
  name = 'vit',
  model = function()
    return ViT { classes = 4, image = p.image, patch = preset.sizes.patch, layers = p.layers,
      heads = preset.sizes.heads, width = p.width }
  end,
  dataset = {
    type = nnscaler.data.shapes,
    train_args = { size = 20000, image = p.image },
    val_args = { size = 1000, image = p.image, split = 'val' },
  },
  micro_batch_size = preset.batch,
  max_train_steps = preset.steps,
  val_every_n_train_steps = 200,
  optimizer = { type = 'adamw', args = { lr = 1e-3, weight_decay = 0.05 }, clip_gnorm = 1.0 },
  lr_scheduler = { type = 'cosine', args = { warmup_steps = 50 } },
}
