--- Layers of experts: the router's losses by hand, limits, experts without tokens, what is refused.
local T = require 'nnscaler.tensor'
local message = require 'tests.lua.support.message'
local nn = require 'nnscaler.nn'
local ours = require('nnscaler.ops').nnscaler

local g = T.generator(7)
local function randn(...) return T.randn({ ... }, { dtype = 'float64', generator = g }) end
local function ints(list) return T.tensor(list, { dtype = 'int64' }) end

local function made(options)
  options.dtype = 'float64'
  local layer = nn.Experts(6, 10, 4, options)
  layer:materialize(3)
  return layer
end

describe('experts', function()
  it('sort rows by expert, those of no expert behind', function()
    local order, place, counts = ours.sort_by_expert(ints { { 2, 0 }, { -1, 2 }, { 0, 3 } }, 5)
    assert.same({ 1, 4, 0, 3, 5, 2 }, order:tolist())
    assert.same({ 2, 0, 5, 3, 1, 4 }, place:tolist())
    assert.same({ 2, 0, 2, 1, 0 }, counts:tolist())
  end)

  it('give rows that came from several devices their experts', function()
    local index = ours.experts_of_rows(ints { { 2, 1 }, { 0, 1 } }, 6)
    assert.same({ 0, 0, 1, 1, -1, -1 }, index:tolist())
    assert.matches('of 4 rows; expected %[sources, experts%] of 3 at most',
      message(ours.experts_of_rows, ints { { 2, 1 }, { 0, 1 } }, 3))
  end)

  it('take so many rows, the first ones', function()
    local kept = ours.limit_experts(ints { { 1, 0 }, { 1, 0 }, { 1, 2 } }, 3, 2)
    assert.same({ { 1, 0 }, { 1, 0 }, { -1, 2 } }, kept:tolist())
  end)

  it('without rows have gradients of zero', function()
    local x, w = randn(5, 3), randn(3, 4, 3)
    local dx, dw = ours.grouped_linear_backward(randn(5, 4), x, w, ints { 2, 0, 2 },
      { true, true })
    assert.equal(0, dw[1]:abs():sum():item())
    assert.equal(0, dx[4]:abs():sum():item()) -- a row of no expert
    assert.is_true(dw[0]:abs():sum():item() > 0 and dw[2]:abs():sum():item() > 0)
  end)

  it('are refused where they do not fit', function()
    assert.matches('expert 4 at place 1; expected %-1 to 3',
      message(ours.sort_by_expert, ints { 0, 4 }, 4))
    assert.matches('0 experts; expected 1 at least', message(ours.sort_by_expert, ints { 0 }, 0))
    assert.matches('3 experts that take 0; expected 1 at least',
      message(ours.limit_experts, ints { 0 }, 3, 0))
    assert.matches('weight Double %[2, 4, 5%]',
      message(ours.grouped_linear, randn(3, 3), randn(2, 4, 5), ints { 1, 2 }))
    assert.matches("activation 'tanh'; expected silu, gelu or relu",
      message(ours.experts, randn(2, 3), ints { { 0 }, { 0 } }, randn(2, 1), randn(1, 4, 3),
        randn(1, 3, 4), nil, 'tanh'))
    assert.matches('5 experts of 4 for each token', message(nn.Experts, 6, 10, 4, { chosen = 5 }))
    assert.matches('capacity = 0; expected more than 0',
      message(nn.Experts, 6, 10, 4, { capacity = 0 }))
    assert.matches("activation = 'tanh'; expected silu, gelu, relu",
      message(nn.Experts, 6, 10, 4, { activation = 'tanh' }))
  end)

  it('tell how evenly tokens are shared out, and how large scores are', function()
    local layer, x = made { chosen = 2 }, randn(2, 5, 6)
    local _, routing = layer(x)
    local balance, z = layer:balance(routing), layer:z_loss(routing)
    local scores = x:matmul(layer.gate.weight:t())
    local p = scores:exp() / scores:exp():sum(-1, true)
    local _, index = p:topk(2, -1)
    local want = 0
    for e = 0, 3 do
      want = want + 4 * index:eq(e):sum():item() / 10 * p:select(-1, e):mean():item()
    end
    assert.is_true(math.abs(balance:item() - want) < 1e-12)
    local sums = scores:exp():sum(-1):log()
    assert.is_true(math.abs(z:item() - (sums * sums):mean():item()) < 1e-12)
  end)

  it('count no place that a mask leaves out', function()
    local layer, x = made { chosen = 2 }, randn(2, 4, 6)
    local mask = T.tensor({ { 1, 0, 1, 1 }, { 0, 0, 1, 0 } }, { dtype = 'float64' })
    local there = T.stack({ x[0][0], x[0][2], x[0][3], x[1][2] }, 0):detach()
    local function run(input, given)
      local leaf = input:clone():requires_grad_(true)
      local y, routing = layer(leaf, given)
      local losses = { layer:balance(routing), layer:z_loss(routing) }
      layer:zero_grad()
      local sum = y:square():sum() + losses[1] + losses[2]
      sum:backward()
      local gradients = {}
      for _, entry in ipairs(layer:named_parameters()) do
        gradients[entry.name] = entry.param.grad:clone()
      end
      return y, losses, gradients, leaf.grad
    end
    local y, losses, gradients, dx = run(x, mask)
    local z, want, wanted, dz = run(there)
    local function same(a, b) assert.is_true((a - b):abs():max():item() < 1e-12) end
    for k, place in ipairs { { 0, 0 }, { 0, 2 }, { 0, 3 }, { 1, 2 } } do
      same(y[place[1]][place[2]], z[k - 1])
      same(dx[place[1]][place[2]], dz[k - 1])
    end
    for _, place in ipairs { { 0, 1 }, { 1, 0 }, { 1, 1 }, { 1, 3 } } do
      assert.equal(0, y[place[1]][place[2]]:abs():sum():item())
      assert.equal(0, dx[place[1]][place[2]]:abs():sum():item())
    end
    for k = 1, 2 do same(losses[k], want[k]) end
    for name, gradient in require('nnscaler.sorted').sorted_pairs(wanted) do
      same(gradients[name], gradient)
    end
    -- Without any token there is nothing to lose.
    local none, zero, zeros = run(x, mask * 0)
    assert.equal(0, none:abs():sum():item() + zero[1]:item() + zero[2]:item())
    for _, gradient in require('nnscaler.sorted').sorted_pairs(zeros) do
      assert.equal(0, gradient:abs():sum():item())
    end
    assert.matches('the mask is %[4, 2%]; expected one number a token: %[2, 4%]',
      message(layer, x, mask:t()))
  end)

  it('leave out what is over their limit', function()
    local x = randn(1, 8, 6)
    local free, limited = made { chosen = 1 }, made { chosen = 1, capacity = 0.5 }
    local y, z = free(x), limited(x) -- one token an expert
    local _, index = x:matmul(free.gate.weight:t()):topk(1, -1)
    local seen = {}
    for t, row in ipairs(index:tolist()[1]) do
      local difference = (y[0][t - 1] - z[0][t - 1]):abs():sum():item()
      if seen[row[1]] then
        assert.equal(0, z[0][t - 1]:abs():sum():item())
      else
        assert.is_true(difference < 1e-12)
      end
      seen[row[1]] = true
    end
  end)
end)
