--- A model that is traced but does not run: its table has fewer rows than there are ids.
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'

local Broken = nn.class 'Broken'
Broken.forward_arg_names = { 'sample' }
function Broken:init()
  self.table, self.last, self.loss = nn.Embedding(2, 8), nn.Linear(8, 10), nn.CrossEntropy()
end
function Broken:forward(sample)
  local loss = self.loss(self.last(self.table(sample.y)), sample.y)
  return loss
end

return {
  name = 'broken_call',
  model = { type = Broken },
  dataset = nnscaler.data.random_samples { size = 64, classes = 10, width = 4 },
  micro_batch_size = 16,
  optimizer = { type = 'adamw' },
  max_train_steps = 2,
  enable_progress_bar = false,
}
