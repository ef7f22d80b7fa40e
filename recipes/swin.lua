--- Swin tells drawn shapes apart; the large presets are for planning: their images are as large as
--- those of ImageNet.
---
---   nnscaler run recipes/swin.lua                                         minutes
---   nnscaler plan recipes/swin.lua preset=base pas_policy=autodist --hardware h100 --world 4
local nnscaler = require 'nnscaler'
local Swin = require 'nnscaler.models.swin'

local presets = {
  tiny = { sizes = { patch = 2, window = 4, width = 32, layers = { 2, 2 }, heads = { 2, 4 } },
    image = 32, batch = 32, steps = 1000 },
  base = { sizes = Swin.configs.base, image = 224, batch = 8, steps = 100 },
  small = { sizes = Swin.configs.small, image = 224, batch = 8, steps = 100 },
}
local preset = presets[nnscaler.params {
  preset = { 'tiny', 'size of the model and of the run', choices = { 'tiny', 'small', 'base' } },
}.preset]
local p = nnscaler.params {
  width = { preset.sizes.width, 'width of the first stage', min = 1 },
  image = { preset.image, 'pixels of a side', min = 4 },
}

return {
  name = 'swin',
  model = function()
    local s = preset.sizes
    return Swin { classes = 4, image = p.image, patch = s.patch, window = s.window,
      width = p.width, layers = s.layers, heads = s.heads }
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
