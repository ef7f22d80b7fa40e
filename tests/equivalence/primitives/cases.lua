--- Plans written by hand, each for one primitive: model or make and sample, plan, policy.
local F = require 'nnscaler.functional'
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
  model = 'gpt_dropout', plan = 2,
  policy = function(graph, cfg)
    for mlp in graph:modules '*.mlp' do
      graph:recompute(mlp)
      graph:partition(mlp:op 'c_fc', { input = 1, dim = 0 }, cfg.plan_ngpus)
    end
    graph:replicate_rest()
  end,
}

M.recompute_in_stages = {
  model = 'gpt_dropout', plan = 2,
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

-- The plan is made for 8 rows; then come 7 (uneven parts) and 1 (replicated).
M.other_shapes = odd(2, { input = 0, dim = 0 })
M.other_shapes.sample = function(generator, k)
  return { x = T.randn({ ({ 8, 7, 1 })[k], 5 }, { generator = generator, dtype = 'float64' }) }
end

return M
