--- Models at the edge of what can be planned: one without parameters, one of one product, and one
--- whose loss is a single operator, which is fewer than two stages.
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'

local p = nnscaler.params { kind = { 'none', 'model', choices = { 'none', 'one', 'short' } } }

local Odd = nn.class 'Odd'
Odd.forward_arg_names = { 'sample' }
function Odd:init()
  if p.kind ~= 'none' then self.weight = nn.Parameter(T.ones { 4 }) end
end
function Odd:forward(sample)
  local x = sample.x
  local loss = p.kind == 'none' and x:mean() or p.kind == 'one' and x:matmul(self.weight):mean()
    or self.weight:sum()
  return loss
end

return {
  name = 'odd',
  model = { type = Odd },
  dataset = nnscaler.data.random_samples { size = 64, classes = 4, width = 4 },
  micro_batch_size = 4,
  optimizer = { type = 'adamw' },
  max_train_steps = 2,
  enable_progress_bar = false,
}
