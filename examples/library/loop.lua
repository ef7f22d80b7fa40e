--- A hand-written training loop: one heavy block of the model is split over ranks, the rest of the
--- model is repeated on all of them.
---
---   nnscaler examples/library/loop.lua                    one rank
---   nnscaler examples/library/loop.lua ranks=2            two rank threads
---   mpirun -np 4 nnscaler examples/library/loop.lua plan=2
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'

local p = nnscaler.params {
  ranks = { 1, 'rank threads to start, without a launcher' },
  plan = { 0, 'devices that the block is split over; all ranks if 0' },
  steps = { 5, 'steps to take' },
  batch = { 8, 'samples of a step, over all ranks' },
}
nnscaler.init { ranks = p.ranks }
local ranks = nnscaler.world_size()
local plan = p.plan > 0 and p.plan or ranks
local units, unit = ranks / plan, math.floor(nnscaler.rank() / plan)

local Block = nn.class 'Block'
function Block:init(width)
  self.up = nn.Linear(width, 4 * width)
  self.down = nn.Linear(4 * width, width, { bias = false }) -- a sum of parts takes no bias
end
function Block:forward(x) return x + self.down(F.gelu(self.up(x))) end

-- The block's first weight is cut by rows, its second by columns.
local function split(graph, cfg)
  if cfg.plan_ngpus > 1 then
    for _, node in ipairs(graph:select { op = 'linear' }) do
      graph:partition(node, { input = 1, dim = node.module:find 'up' and 0 or 1 }, cfg.plan_ngpus)
    end
    for _, node in ipairs(graph:select { op = 'gelu' }) do
      graph:partition(node, { input = 0, dim = 1 }, cfg.plan_ngpus)
    end
  end
  graph:replicate_rest()
end

local width, per_unit = 16, p.batch / units
local Model = nn.class 'Model'
function Model:init()
  self.inner = nn.Linear(4, width)
  self.block = nnscaler.parallelize(Block(width), {
    x = T.zeros({ per_unit, width }):requires_grad_(),
  }, split, { plan_ngpus = plan, runtime_ngpus = ranks }, { gen_savedir = '' })
  self.outer = nn.Linear(width, 1)
end
function Model:forward(x) return self.outer(self.block(self.inner(x))) end

local model = Model():materialize(1)
local optimizer = nnscaler.build_optimizer(model, 'adamw', { lr = 1e-2 })
local generator = T.generator(2)

for step = 1, p.steps do
  -- All ranks draw the same batch; each unit takes its share of it.
  local x = T.randn({ p.batch, 4 }, { generator = generator })
  local y = x:sum(1, true):sin()
  x, y = x:narrow(0, unit * per_unit, per_unit), y:narrow(0, unit * per_unit, per_unit)
  optimizer:zero_grad()
  local loss = F.mse_loss(model(x), y)
  loss:backward()
  optimizer:sync_shard_grad()
  optimizer:scale_grads(1 / units)
  local norm = optimizer:clip_gnorm(1.0)
  optimizer:step()
  local mean = optimizer:sum_over_units { loss:item() / units }
  if nnscaler.rank() == 0 then
    print(('step %d  loss %.6f  gnorm %.6f'):format(step, mean[1], norm))
  end
end
