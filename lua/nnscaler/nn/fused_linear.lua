--- Several linear layers in one product, weight [count, outputs, inputs] and bias [count, outputs],
--- one result each. The rows of all layers are cut alike, so that heads of query, key and value
--- stay together.
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local register_op = require 'nnscaler.register_op'

return register_op('nnscaler::fused_linear', {
  kind = 'linear',
  annotation = function(_, weight, bias)
    local results = {}
    for i = 1, weight.shape[1] do results[i] = '* n' end
    local left = bias and ('* k^, %d n k^, %d n'):format(weight.shape[1], weight.shape[1])
      or ('* k+, %d n k+'):format(weight.shape[1])
    return left .. ' -> ' .. table.concat(results, ', ')
  end,
  body = function(x, weight, bias)
    local y = aten.linear(x, weight:flatten(0, 1), bias and bias:flatten(0, 1))
    return unpack(y:split(weight.shape[2], -1))
  end,
  flops = function(x, weight)
    local count = 2 * weight.shape[1] * weight.shape[2]
    for _, size in ipairs(x.shape) do count = count * size end
    return count
  end,
  inputs = function(generator)
    local function draw(...)
      return T.randn({ ... }, { generator = generator, dtype = 'float64' })
    end
    return { draw(2, 3, 4), draw(3, 6, 4), draw(3, 6) }
  end,
})
