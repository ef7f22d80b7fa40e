--- What each rank of traffic_spec.lua runs; the argument names the experiment.
local F = require 'nnscaler.functional'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local door = require 'nnscaler._C.tensor'
local everybody = require 'tests.equivalence.support.everybody'
local groups = require 'nnscaler.runtime.groups'
local models = require 'tests.equivalence.plans.models'
local nn = require 'nnscaler.nn'
local traffic = require 'nnscaler.runtime.traffic'

local M = {}

-- Collectives by hand, of sizes that the ranks do not divide.
function M.primitives()
  local group, out = everybody(), {}
  local function measure(name, f)
    local before = group:bytes_sent()
    f()
    out[name] = group:bytes_sent() - before
  end
  for _, size in ipairs { 1, 7, 12 } do
    local x = T.ones({ size, 3 }, { dtype = 'float64' })
    measure('all_reduce ' .. size, function() group:all_reduce(x:clone()) end)
    measure('reduce_scatter ' .. size, function() group:reduce_scatter(x, 0) end)
    local n = group:size()
    local first = math.floor(size / n) + (group:position() < size % n and 1 or 0)
    local part = T.ones({ first, 3 }, { dtype = 'float64' })
    measure('all_gather ' .. size, function() group:all_gather(part, 0, size) end)
  end
  return out
end

-- Blocks of a column-cut and a row-cut layer, as Megatron cuts them.
local Block = nn.class 'Block'
function Block:init()
  self.fc, self.proj = nn.Linear(5, 12), nn.Linear(12, 5, { bias = false })
end
function Block:forward(x) return x + self.proj(F.gelu(self.fc(x))) end

local Blocks = nn.class 'Blocks'
function Blocks:init()
  self.layers = nn.ModuleList()
  for _ = 1, 3 do self.layers:append(Block {}) end
end
function Blocks:forward(s)
  local x = s.x
  for _, block in ipairs(self.layers) do x = block(x) end
  return x:square():sum()
end
models.blocks = {
  make = function() return Blocks {} end,
  sample = function(generator)
    return { x = T.randn({ 3, 5 }, { generator = generator, dtype = 'float64' }) }
  end,
}
local function megatron(graph, cfg)
  local n = cfg.plan_ngpus
  for _, node in ipairs(graph:nodes()) do
    if node.module:find 'fc$' then
      graph:partition(node, { input = 1, dim = 0 }, n)
    elseif node.module:find 'proj$' then
      graph:partition(node, { input = 0, dim = 1 }, n)
    elseif node.name == 'gelu' then
      graph:partition(node, { input = 0, dim = 1 }, n)
    end
  end
  graph:replicate_rest()
end

-- Cuts rows that the devices do not divide.
local function uneven(graph, cfg)
  for _, node in ipairs(graph:nodes()) do
    local where = { input = 0, dim = 0, uneven = true }
    if #node.inputs > 0 and not graph:refusal(node, where, cfg.plan_ngpus) then
      graph:partition(node, where, cfg.plan_ngpus)
    end
  end
  graph:replicate_rest()
end

local policies = { megatron = megatron, uneven = uneven }

-- A training step: what the groups count, what the program says, its calls and its weights.
function M.step(case)
  local program = Program.new(models.new(case.model), {
    seed = 5, pas_policy = policies[case.policy] or case.policy, pas_config = case.config or {},
    micro_batches = case.micro,
    compute_config = { plan_ngpus = case.plan, runtime_ngpus = case.ranks },
  })
  local generator, samples = T.generator(11), {}
  for k = 1, case.micro do samples[k] = models[case.model].sample(generator, k) end
  program:prepare(samples[1])
  program:train_step(samples, { step = 3, seed = 5 }) -- groups are made
  program:zero_grad()
  local before = groups.bytes_sent()
  program:train_step(samples, { step = 3, seed = 5 })
  return {
    counted = groups.bytes_sent() - before, said = traffic.bytes(program.traffic, case.micro),
    calls = program.traffic, shares = program.shares, lockstep = program.sharing.lockstep or false,
  }
end

-- Loads a model of 12 MB under a plan; bytes that live afterwards and at most, of all ranks.
function M.memory(case)
  local Wide = nn.class 'Wide'
  function Wide:init()
    self.layers = nn.Sequential()
    for _ = 1, 12 do self.layers:append(nn.Linear(512, 512, { bias = false })) end
  end
  function Wide:forward(s) return self.layers(s.x):sum() end
  local model = Wide {}
  local sample = { x = T.zeros { 4, 512 } }
  local group = everybody()
  group:barrier()
  local before = door.memory(group:position() == 0)
  group:barrier()
  local program = Program.new(model, {
    seed = 5, pas_config = {},
    pas_policy = case.policy == 'rows' and function(graph, cfg)
      for _, node in ipairs(graph:select { op = 'linear' }) do
        graph:partition(node, { input = 1, dim = 0 }, cfg.plan_ngpus)
      end
      graph:replicate_rest()
    end or case.policy,
    compute_config = { plan_ngpus = case.plan, runtime_ngpus = 4 },
  })
  program:prepare(sample)
  group:barrier()
  local live, peak = door.memory()
  local own = 0
  for _, p in ipairs(program.parameters) do own = own + p.data:numel() * 4 end
  group:barrier()
  return { live = live - before, peak = peak - before, own = own }
end

-- Rank `case.other` gets another micro-batch.
function M.samples(case)
  local program = Program.new(models.new 'mlp', {
    seed = 5, pas_policy = 'data', compute_config = { plan_ngpus = 2, runtime_ngpus = 4 },
  })
  local generator = T.generator(11)
  local function sample() return models.mlp.sample(generator) end
  local x = { sample(), sample() }
  if comm.current():rank() == case.other then x[2].y:add_(1e-9) end
  program:prepare(x[1])
  program:train_step(x, { step = case.step, seed = 5 })
  return {}
end

return function(argument)
  require('nnscaler.log').set_level 'error'
  local case = base.json_decode(argument)
  return base.json_encode(M[case.experiment](case))
end
