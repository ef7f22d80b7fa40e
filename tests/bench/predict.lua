--- Jobs for tests/bench/predict.py beside recipes/nanogpt.lua: a stack of linear layers, and one of
--- convolutions, on random samples.
local F = require 'nnscaler.functional'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'

local p = nnscaler.params {
  kind = { 'mlp', 'of the model', choices = { 'mlp', 'cnn' } },
  width = { 1024, 'of linear layers; a sixteenth are channels' },
  depth = { 8, 'layers' },
}
local channels, side = p.width / 16, 16

local Cnn = nn.class 'Cnn'
Cnn.forward_arg_names = { 'sample' }
function Cnn:init()
  self.layers = nn.ModuleList {}
  for i = 1, p.depth do
    self.layers:append(nn.Conv2d(i == 1 and 4 or channels, channels, 3, { padding = 1 }))
  end
  self.last, self.loss = nn.Linear(channels, 10), nn.CrossEntropy()
end
function Cnn:forward(sample)
  local x = sample.x:reshape { sample.x.shape[1], 4, side, side }
  for _, layer in ipairs(self.layers) do x = F.relu(layer(x)) end
  local loss = self.loss(self.last(x:mean { 2, 3 }), sample.y)
  return loss
end

local sizes = {}
for i = 1, p.depth do sizes[i] = p.width end
sizes[#sizes + 1] = 10

return {
  name = p.kind,
  model = p.kind == 'cnn' and { type = Cnn } or { type = 'mlp', args = { sizes = sizes } },
  dataset = nnscaler.data.random_samples { size = 4096, classes = 10,
    width = p.kind == 'cnn' and 4 * side * side or p.width },
  optimizer = { type = 'adamw' },
  max_train_steps = 1000,
  enable_progress_bar = false,
}
