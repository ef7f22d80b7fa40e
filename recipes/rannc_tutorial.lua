--- The tutorial of RaNNC (Tanaka et al., IPDPS 2021) as a loop of one's own: a chain of linear
--- layers, planned at its first call, trained for one step on any number of ranks.
---
---   mpirun -np 2 nnscaler recipes/rannc_tutorial.lua batch=64 hidden=512 layers=10
---   nnscaler recipes/rannc_tutorial.lua ranks=2             two rank threads, without a launcher
---   nnscaler recipes/rannc_tutorial.lua hidden=5000 layers=100 hardware=a100-40x8 world=8
---                                       the plan for hardware that is only described
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'
local process = require 'nnscaler._C.process'
local ranks = require 'nnscaler.ranks'

local p = nnscaler.params {
  batch = { 64, 'samples of each rank', min = 1 },
  hidden = { 512, 'width of a layer', min = 1 },
  layers = { 10, 'number of layers', min = 1 },
  ranks = { 1, 'rank threads to start, without a launcher', min = 1 },
  rannc_costs = { true, "plan by RaNNC's formulas; false: by the simulator" },
  hardware = { 'cpu', 'that the plan is for: a known machine, or a description' },
  world = { 0, 'plan for so many devices and run nothing', min = 0 },
}

local Net = nn.class 'Net'
function Net:init(hidden, layers)
  self.layers = nn.ModuleList {}
  for _ = 1, layers do self.layers:append(nn.Linear(hidden, hidden)) end
end
function Net:forward(x)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return x
end

if p.world == 0 then nnscaler.init { ranks = p.ranks } end
local rank, log = nnscaler.rank(), nnscaler.log.logger 'tutorial'
local hosts = ranks.exchange((process.host()))
if rank == 0 then
  for r, host in ipairs(hosts) do log.info('Started on rank %d (%s)', r - 1, host) end
  log.info 'Device assignments:'
  for r, host in ipairs(hosts) do log.info(' Worker %d: cpu@%s', r - 1, host) end
end

local model = Net(p.hidden, p.layers)
if rank == 0 then
  local count = 0
  for _, parameter in ipairs(model:parameters()) do
    local elements = 1
    for _, size in ipairs(parameter.shape) do elements = elements * size end
    count = count + elements
  end
  print(('#Parameters=%d'):format(count))
end
local wrapped, optimizer = nnscaler.wrap(model, { type = 'sgd', args = { lr = 0.01 } }, {
  gen_savedir = '',
  compute_config = {
    pas_config = { rannc_costs = p.rannc_costs, hardware = p.hardware, max_partition_num = 10 },
  },
})

if p.world > 0 then
  wrapped:plan_for(p.world, T.empty { p.batch, p.hidden }:requires_grad_())
  return
end
local generator = T.generator(rank)
local x = T.randn({ p.batch, p.hidden }, { generator = generator }):requires_grad_()
local out = wrapped(x)
out:backward(T.randn(out.shape, { generator = generator }))
optimizer:step()
print(('Finished on rank%d'):format(rank))
