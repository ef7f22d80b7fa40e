--- Odd models: the graph of each, run node by node, gives what the model computes eagerly.
local T = require 'nnscaler.tensor'
local models = require 'tests.lua.odd_models'
local run = require 'tests.lua.graph_eval'
local trace = require 'nnscaler.trace'

-- Tensors of nested tables by path.
local function flatten(value, path, out)
  if T.is_tensor(value) then
    out[path] = value
  elseif type(value) == 'table' then
    for _, key in ipairs(require('nnscaler.sorted').sorted_keys(value)) do
      flatten(value[key], path .. '.' .. tostring(key), out)
    end
  end
  return out
end

describe('the graph of a model with', function()
  for _, case in ipairs(models) do
    it(case.name, function()
      local model, sample = case.make(), case.sample(T.generator(11))
      model:materialize(7)
      model:eval()
      local leaves = flatten(sample, '1', {})
      for _, entry in ipairs(model:named_parameters()) do leaves[entry.name] = entry.param end
      for _, entry in ipairs(model:named_buffers()) do leaves[entry.name] = entry.buffer end
      local expected = T.no_grad(function() return { model(sample) } end)
      local graph = trace(model, { sample }, { training = false })
      local _, values = T.no_grad(function() return run(graph, leaves) end)
      local wanted, checked = flatten(expected, 'result', {}), 0
      local function compare(nest, path)
        if type(nest) ~= 'table' then return end
        if nest.value then
          checked = checked + 1
          local want, got = wanted[path], values[nest.value]
          assert.are.equal(want.dtype, got.dtype)
          assert.are.same(want.shape, got.shape)
          assert.is_true((want:double() - got:double()):abs():max():item() <= 1e-12, path)
          return
        end
        for _, key in ipairs(require('nnscaler.sorted').sorted_keys(nest)) do
          compare(nest[key], path .. '.' .. tostring(key))
        end
      end
      compare(graph:outputs(), 'result')
      assert.is_true(checked >= 1)
      trace(model, { sample })  -- the training graph is one graph, too
    end)
  end
end)
