--- Plans written by hand, each for one primitive: model or make and sample, plan, policy.
local F = require 'nnscaler.functional'
local GPT = require 'nnscaler.models.gpt'
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'

local M = {}

-- Cuts every node along dimension `dim` of operand `input` where it can be, unevenly if need be.
local function cut_all(graph, where, parts)
  for _, node in ipairs(graph:nodes()) do
    if #node.inputs > 0 and not graph:refusal(node, where, parts) then
      graph:partition(node, where, parts)
    end
  end
  graph:replicate_rest()
end

M.recompute = {
  model = 'gpt dropout', plan = 2,
  policy = function(graph, cfg)
    for mlp in graph:modules '*.mlp' do
      graph:recompute(mlp)
      graph:partition(mlp:op 'c_fc', { input = 1, dim = 0 }, cfg.plan_ngpus)
    end
    graph:replicate_rest()
  end,
}

M.recompute_in_stages = {
  model = 'gpt dropout', plan = 2,
  policy = function(graph)
    graph:stage({ graph:module('transformer.h.1'):nodes()[1] }, { { 0 }, { 1 } })
    graph:schedule('1f1b', 3)
    graph:recompute 'transformer.h.?'
    graph:replicate_rest()
  end,
}

-- Rows of 7 samples, 5 features: nothing divides.
local Odd = nn.class 'Odd'
function Odd:init()
  self.fc, self.proj = nn.Linear(5, 7), nn.Linear(7, 3)
end
function Odd:forward(sample)
  local h = F.dropout(F.gelu(self.fc(sample.x)), 0.2, self.training)
  return self.proj(h):pow(2):sum()
end
local function odd(plan, where)
  return {
    make = function() return Odd {} end,
    sample = function(generator)
      return { x = T.randn({ 7, 5 }, { generator = generator, dtype = 'float64' }) }
    end,
    plan = plan, policy = function(graph) cut_all(graph, where, plan) end,
  }
end
M.uneven_rows_2 = odd(2, { input = 0, dim = 0, uneven = true })
M.uneven_rows_3 = odd(3, { input = 0, dim = 0, uneven = true })
M.uneven_columns_2 = odd(2, { input = 0, dim = 1, uneven = true })
M.uneven_columns_4 = odd(4, { input = 0, dim = 1, uneven = true })
M.uneven_weights_3 = odd(3, { input = 1, dim = 0, uneven = true })

-- Parts of given sizes: of rows (7), features (5) and weights.
M.sizes_of_rows = odd(2, { input = 0, dim = 0, sizes = { 5, 2 } })
M.sizes_of_rows_3 = odd(3, { input = 0, dim = 0, sizes = { 1, 4, 2 } })
M.sizes_of_weights = odd(3, { input = 1, dim = 0, sizes = { 4, 1, 2 } })
M.sizes_of_weights.cut = 1
M.sizes_of_sums = odd(2, { input = 0, dim = 1, sizes = { 1, 4 } })
M.sizes_and_other_shapes = odd(2, { input = 0, dim = 0, sizes = { 5, 3 } })
M.sizes_and_other_shapes.sample = function(generator, k)
  return { x = T.randn({ ({ 8, 7, 1 })[k], 5 }, { generator = generator, dtype = 'float64' }) }
end
-- Rows in given sizes, and inside them columns or sums.
M.sizes_in_two_steps = odd(4)
M.sizes_in_two_steps.policy = function(graph)
  for _, node in ipairs(graph:nodes()) do
    if not graph:refusal(node, { input = 0, dim = 0, sizes = { 6, 1 } }) then
      graph:partition(node, { input = 0, dim = 0, sizes = { 6, 1 } })
      local inner = { input = 0, dim = 1, uneven = true }
      if graph:refusal(node, inner, 2) then
        graph:replicate(node, 2)
      else
        graph:partition(node, inner, 2)
      end
    end
  end
  graph:replicate_rest()
end

-- The plan is made for 8 rows; then come 7 (uneven parts) and 1 (replicated).
M.other_shapes = odd(2, { input = 0, dim = 0 })
M.other_shapes.sample = function(generator, k)
  return { x = T.randn({ ({ 8, 7, 1 })[k], 5 }, { generator = generator, dtype = 'float64' }) }
end

-- Co-located parts. Devices 0,0,1,1 run two parts each.
local function in_turns(where, plan, turns)
  where.in_turns = true
  return function(graph)
    local devices = {}
    for d = 0, plan - 1 do
      for _ = 1, turns do devices[#devices + 1] = d end
    end
    for _, node in ipairs(graph:nodes()) do
      if #node.inputs > 0 and not graph:refusal(node, where, plan * turns) then
        graph:partition(node, where, plan * turns)
        graph:assign(node, devices)
      end
    end
    graph:replicate_rest()
  end
end
M.turns_rows = { model = 'gpt dropout', plan = 2, policy = in_turns({ input = 0, dim = 0 }, 2, 2) }
M.turns_columns = { model = 'gpt tied', plan = 2, policy = in_turns({ input = 0, dim = 2 }, 2, 2) }
M.turns_of_weights = { model = 'mlp', plan = 2, cut = 1,
  policy = in_turns({ input = 1, dim = 0 }, 2, 2) }
M.turns_of_sums = { model = 'shared weight', plan = 2,
  policy = in_turns({ input = 0, dim = 1 }, 2, 2) }
M.turns_on_one_device = { model = 'gpt dropout', plan = 1,
  policy = in_turns({ input = 0, dim = 0 }, 1, 4) }
-- Rows over devices, columns in turns.
M.turns_of_another_dim = { model = 'mlp', plan = 2, policy = function(graph)
  local node = graph:select({ op = 'gelu' })[1]
  graph:partition(node, { input = 0, dim = 0 }, 2)
  graph:partition(node, { input = 0, dim = 1 }, 2)
  graph:assign(node, { 0, 0, 1, 1 })
  graph:replicate_rest()
end }

-- Rows that lie on the devices the other way round: regions move between them.
M.moved_rows = { model = 'mlp', plan = 2, policy = function(graph)
  local node = graph:select({ op = 'gelu' })[1]
  graph:partition(node, { input = 0, dim = 0 }, 2)
  graph:assign(node, { 0, 1 })
  for _, other in ipairs(graph:consumers(node)) do
    if #other.inputs > 0 and not graph:refusal(other, { input = 0, dim = 0 }, 2) then
      graph:partition(other, { input = 0, dim = 0 }, 2)
      graph:assign(other, { 1, 0 })
    end
  end
  graph:replicate_rest()
end }

-- Stages of unequally many devices: one of the two that hold a sum sends it on, or sends back a
-- gradient that is one; the other takes part in the sum all the same.
local function unequal(devices, cut, where)
  return { model = 'mlp', plan = 3, policy = function(graph)
    graph:stage({ graph:nodes()[2] }, devices)
    graph:schedule('1f1b', 3)
    graph:partition(graph:select({ op = cut })[1], where, 2)
    graph:replicate_rest()
  end }
end
M.stages_two_to_one = unequal({ { 0, 1 }, { 2 } }, 'linear', { input = 0, dim = 1 })
M.stages_one_to_two = unequal({ { 0 }, { 1, 2 } }, 'gelu', { input = 0, dim = 1 })
M.stages_one_to_two_sums = { model = 'sigmoids', plan = 3, policy = function(graph)
  local nodes = graph:nodes()
  graph:stage({ nodes[3] }, { { 0 }, { 1, 2 } })
  graph:schedule('1f1b', 3)
  graph:partition(nodes[3], { input = 1, dim = 0 }, 2)
  graph:replicate_rest()
end }

-- Functions that look at local operands and results.
M.hooks = { model = 'gpt dropout', plan = 2, policy = function(graph)
  for _, node in ipairs(graph:nodes()) do
    if #node.inputs > 0 and not graph:refusal(node, { input = 0, dim = 0 }, 2) then
      graph:partition(node, { input = 0, dim = 0 }, 2)
    end
    graph:hook(node, { before = 'tests.lua.support.hooks.before',
      after = 'tests.lua.support.hooks.after' })
  end
  graph:recompute 'transformer.h.1'
  graph:replicate_rest()
end }

-- The worked examples.
local function example(name, plan, pas_config)
  return { model = 'gpt dropout', plan = plan, pas_config = pas_config,
    policy = assert(loadfile('examples/policies/' .. name .. '.lua'))() }
end
M.example_coshard = example('coshard', 2)
M.example_coshard_4_turns = example('coshard', 1, { turns = 4 })
M.example_three_stages = example('three_stages', 3)
M.example_three_stages.make = function()
  return GPT { vocab = 16, layers = 3, heads = 2, width = 8, block = 8, bias = true, dropout = 0.1 }
end
M.example_three_stages.sample = require('tests.equivalence.plans.models')['gpt tied'].sample
for _, plan in ipairs { 2, 4 } do
  for _, tied in ipairs { false, true } do
    local case = example('interlaced', plan)
    case.cut, case.micro_batches = 1, 5
    case.make = function()
      return GPT { vocab = 16, layers = 4, heads = 2, width = 8, block = 8, bias = true,
        dropout = 0.1, tied = tied }
    end
    case.sample = M.example_three_stages.sample
    M[('example_interlaced%s_%d'):format(tied and '_tied' or '', plan)] = case
  end
end

return M
