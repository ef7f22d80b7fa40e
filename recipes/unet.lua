--- A U-Net finds the pixels of drawn shapes, and which shape they belong to.
---
---   nnscaler run recipes/unet.lua                                         minutes
---   nnscaler run recipes/unet.lua -n 2 width=32 image=64
local nnscaler = require 'nnscaler'
local UNet = require 'nnscaler.models.unet'

local p = nnscaler.params {
  depth = { 3, 'how often images are halved', min = 1 },
  width = { 16, 'channels at full size', min = 1 },
  image = { 32, 'pixels of a side', min = 8 },
}

return {
  name = 'unet',
  model = function() return UNet { classes = 5, depth = p.depth, width = p.width } end,
  dataset = {
    type = nnscaler.data.shapes,
    train_args = { size = 20000, image = p.image, labels = 'pixels' },
    val_args = { size = 500, image = p.image, labels = 'pixels', split = 'val' },
  },
  micro_batch_size = 16,
  max_train_steps = 500,
  val_every_n_train_steps = 100,
  optimizer = { type = 'adamw', args = { lr = 2e-3 }, clip_gnorm = 1.0 },
  lr_scheduler = { type = 'cosine', args = { warmup_steps = 20 } },
}
