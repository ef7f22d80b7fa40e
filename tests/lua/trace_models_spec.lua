--- Odd models: the graph of each, run node by node, gives what the model computes eagerly: results,
--- buffers and (under autograd) gradients.
local C = require 'nnscaler._C.tensor'
local T = require 'nnscaler.tensor'
local models = require 'tests.lua.odd_models'
local run = require 'tests.lua.graph_eval'
local sorted_keys = require('nnscaler.sorted').sorted_keys
local trace = require 'nnscaler.trace'

-- Tensors of nested tables by path.
local function flatten(value, path, out)
  if T.is_tensor(value) then
    out[path] = value
  elseif type(value) == 'table' then
    for _, key in ipairs(sorted_keys(value)) do
      flatten(value[key], path .. '.' .. tostring(key), out)
    end
  end
  return out
end

local function close(want, got, what)
  assert.are.equal(want.dtype, got.dtype, what)
  assert.are.same(want.shape, got.shape, what)
  if want:numel() == 0 then return end
  assert.is_true((want:double() - got:double()):abs():max():item() <= 1e-12, what)
end

-- Holds the results of a graph against those of the model; returns how many were tensors.
local function compare(nest, wanted, values, path)
  if type(nest) ~= 'table' then return 0 end
  if nest.value then
    close(wanted[path], values[nest.value], path)
    return 1
  end
  local count = 0
  for _, key in ipairs(sorted_keys(nest)) do
    count = count + compare(nest[key], wanted, values, path .. '.' .. tostring(key))
  end
  return count
end

-- What the graph reads, as tensors that the model's own run does not touch.
local function leaves_of(model, sample)
  local leaves = flatten(sample, '1', {})
  for _, entry in ipairs(model:named_parameters()) do
    leaves[entry.name] = entry.param.data:clone():requires_grad_(entry.param.requires_grad)
  end
  for _, entry in ipairs(model:named_buffers()) do
    leaves[entry.name] = entry.buffer.data:clone()
  end
  return leaves
end

describe('the graph of a model with', function()
  for _, case in ipairs(models) do
    for _, training in ipairs { true, false } do
      it(case.name .. (training and ', training' or ', evaluation'), function()
        local model, sample = case.make(), case.sample(T.generator(11))
        model:materialize(7)
        if training then model:train() else model:eval() end
        local leaves = leaves_of(model, sample)
        local graph = trace(model, { sample }, { training = training })
        C.set_random { seed = 3, step = 4, micro = 5 }
        local function forward() return { model(sample) } end
        local expected = training and forward() or T.no_grad(forward)
        local values = run(graph, leaves)
        local wanted = flatten(expected, 'result', {})
        assert.is_true(compare(graph:outputs(), wanted, values, 'result') > 0)

        local names, updated = graph:values(), {}
        for _, update in ipairs(graph:buffer_updates()) do
          updated[names[update.buffer + 1].name] = values[update.value]
        end
        for _, entry in ipairs(model:named_buffers()) do
          close(entry.buffer.data, updated[entry.name] or leaves[entry.name], entry.name)
        end

        local loss = values[graph:outputs()[1].value]
        assert.are.equal(expected[1].requires_grad, loss.requires_grad)
        if not loss.requires_grad then return end
        expected[1]:backward()
        loss:backward()
        for _, entry in ipairs(model:named_parameters()) do
          local want, got = entry.param.grad, leaves[entry.name].grad
          assert.are.equal(want == nil, got == nil, entry.name)
          if want then close(want, got, entry.name) end
        end
      end)
    end
  end
end)
