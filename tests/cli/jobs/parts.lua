--- A model with two modules of one class that are made parallel, and a rest that is not.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'
local Block = require 'block'

local p = nnscaler.params {
  policy = { 'tp', 'of the modules' },
  wide = { false, 'one of the modules has other arguments' },
  none = { false, 'the model makes no such module' },
}

local Net = nn.class 'Net'
function Net:init()
  self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 4)
  self.blocks = nn.ModuleList {}
  for i = 1, p.none and 0 or 2 do
    self.blocks:append(Block { width = 16, share = p.wide and i == 2 and 0.2 or 0.1 })
  end
end
function Net:forward(sample)
  local x = self.inner(sample.x)
  for i = 1, #self.blocks do x = self.blocks[i](x) end
  return F.cross_entropy(self.outer(x), sample.y)
end

local function samples(size, seed)
  return nnscaler.data.random_samples { size = size, width = 8, classes = 4, seed = seed }
end

return {
  model = {
    type = function() return Net() end,
    parallel_modules = { {
      type = 'block', args = { width = 16, share = 0.1 }, pas_policy = p.policy,
      forward_args_gen_fn = function(job)
        local x = T.zeros({ job.micro_batch_size, 16 }, { dtype = 'float64' })
        return { x = x:requires_grad_() }
      end,
    } },
  },
  dataset = function() return { train = samples(30, 0), val = samples(6, 5) } end,
  micro_batch_size = 2, global_batch_size = 8, max_train_steps = 10, max_epochs = 100,
  precision = 'fp64', enable_progress_bar = false, seed = 3, threads = 1,
  optimizer = { type = 'adamw', args = { lr = 1e-2 }, clip_gnorm = 0.5 },
  checkpoint = { every_n_train_steps = 5 },
}
