--- The smallest job: one linear layer learns 100 random samples, one at a time.
---
---   nnscaler run recipes/quickstart.lua
local nnscaler = require 'nnscaler'

return {
  name = 'quickstart',
  model = { type = 'mlp', args = { sizes = { 100, 10 } } },
  dataset = nnscaler.data.random_samples { size = 100, width = 100, classes = 10 },
  optimizer = { type = 'adamw' },
  max_train_steps = 10,
  enable_progress_bar = false,
}
