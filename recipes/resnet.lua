--- ResNet tells drawn shapes apart; the large presets are for planning: their images are as large
--- as those of ImageNet. `preset=resnet152 width=512` is the 8 times wider one that RaNNC trained.
---
---   nnscaler run recipes/resnet.lua                                       minutes
---   nnscaler plan recipes/resnet.lua preset=resnet50 pas_policy=rannc --world 2
local nnscaler = require 'nnscaler'
local ResNet = require 'nnscaler.models.resnet'

local presets = {
  tiny = { layers = { 1, 1, 1, 1 }, width = 16, image = 32, batch = 32, steps = 500 },
  resnet50 = { layers = 50, width = 64, image = 224, batch = 8, steps = 100 },
  resnet152 = { layers = 152, width = 64, image = 224, batch = 8, steps = 100 },
}
local preset = presets[nnscaler.params {
  preset = { 'tiny', 'size of the model and of the run',
    choices = { 'tiny', 'resnet50', 'resnet152' } },
}.preset]
local p = nnscaler.params {
  width = { preset.width, 'channels of the first stage', min = 1 },
  image = { preset.image, 'pixels of a side', min = 32 },
}

return {
  name = 'resnet',
  model = function()
    return ResNet { classes = 4, layers = preset.layers, width = p.width, small = p.image < 64 }
  end,
  dataset = {
    type = nnscaler.data.shapes,
    train_args = { size = 20000, image = p.image },
    val_args = { size = 1000, image = p.image, split = 'val' },
  },
  micro_batch_size = preset.batch,
  max_train_steps = preset.steps,
  val_every_n_train_steps = 100,
  optimizer = { type = 'sgd', args = { lr = 0.05, momentum = 0.9, weight_decay = 1e-4 } },
  lr_scheduler = { type = 'cosine', args = { warmup_steps = 20 } },
}
