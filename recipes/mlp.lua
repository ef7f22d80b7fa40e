--- The stack of linear layers of RaNNC's tutorial, which the policy `rannc` cuts into stages; it
--- learns to turn vectors round. By default it has the 2,626,560 parameters of the tutorial.
---
---   nnscaler run recipes/mlp.lua -n 2 pas_policy=rannc
---   nnscaler plan recipes/mlp.lua hidden=5000 layers=100 pas_policy=rannc --world 8
local nnscaler = require 'nnscaler'
local T = nnscaler.tensor

local p = nnscaler.params {
  batch = { 64, 'samples of a micro-batch', min = 1 },
  hidden = { 512, 'width of the layers', min = 1 },
  layers = { 10, 'number of layers', min = 1 },
}

local sizes, reversed = {}, {}
for i = 1, p.layers + 1 do sizes[i] = p.hidden end

function reversed.len() return 10000 end
function reversed.get(_, i)
  local x = T.randn({ p.hidden }, { generator = T.generator(i) })
  return { x = x, y = x:flip { 0 } }
end

return {
  name = 'mlp',
  model = { type = 'mlp', args = { sizes = sizes, activation = 'Identity', loss = 'mse' } },
  dataset = reversed,
  micro_batch_size = p.batch,
  max_train_steps = 200,
  optimizer = { type = 'adamw', args = { lr = 1e-3 } },
}
