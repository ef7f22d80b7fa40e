--- Our random operators: any slice equals the slice of the whole, on any number of threads; dropout
--- and attention against plain ATen with the mask as a tensor; derivatives against autograd's.
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local door = require 'nnscaler._C.tensor'
local each_isa = require 'tests.lua.support.each_isa'
local ours = require('nnscaler.ops').nnscaler

local f64 = { dtype = 'float64' }
local function randn(g, shape) return T.randn(shape, { generator = g, dtype = 'float64' }) end
local function leaf(g, shape) return randn(g, shape):requires_grad_() end
local function between(g, low, high)
  return T.randint(low, high + 1, { 1 }, { generator = g, dtype = 'int64' }):item()
end

-- A random tensor shape and a random slice of it: full, offset, shape.
local function random_slice(g)
  local full, offset, shape = {}, {}, {}
  for d = 1, between(g, 1, 4) do
    full[d] = between(g, 1, d == 1 and 200 or 20)
    offset[d] = between(g, 0, full[d] - 1)
    shape[d] = between(g, 0, full[d] - offset[d])
    if between(g, 0, 2) == 0 then offset[d], shape[d] = 0, full[d] end
  end
  return full, offset, shape
end

local function cut(whole, offset, shape)
  for d = 1, #shape do whole = whole:narrow(d - 1, offset[d], shape[d]) end
  return whole
end

local fills = {
  fill_normal_ = { 1, 2 }, fill_uniform_ = { -1, 3 }, fill_trunc_normal_ = { 0, 1, -1, 2 },
}

describe('a slice is drawn as the slice of the whole', function()
  local g = T.generator(11)

  for name, numbers in require('nnscaler.sorted').sorted_pairs(fills) do
    it('by ' .. name, function()
      local function draw(shape, ...)
        local args = { T.empty(shape, f64), unpack(numbers) }
        for _, value in ipairs { 'w', 3, ... } do args[#args + 1] = value end
        return ours[name](unpack(args))
      end
      for _ = 1, 20 do
        local full, offset, shape = random_slice(g)
        assert.is_true(cut(draw(full), offset, shape):equal(draw(shape, offset, full)))
      end
    end)
  end

  for _, name in ipairs { 'normal_like', 'uniform_like', 'bernoulli' } do
    it('by ' .. name, function()
      local function draw(shape, ...)
        local like = T.full(shape, 0.3, f64)
        if name == 'bernoulli' then return ours.bernoulli(like, 'm:b#0', 3, 7, 2, ...) end
        return ours[name](like, nil, 'm:n#0', 3, 7, 2, ...)
      end
      for _ = 1, 20 do
        local full, offset, shape = random_slice(g)
        assert.is_true(cut(draw(full), offset, shape):equal(draw(shape, offset, full)))
      end
    end)
  end

  it('by fill_orthogonal_', function()
    local whole = ours.fill_orthogonal_(T.empty({ 6, 4 }, f64), 1, 'w', 3)
    local part = ours.fill_orthogonal_(T.empty({ 2, 3 }, f64), 1, 'w', 3, { 3, 1 }, { 6, 4 })
    assert.is_true(cut(whole, { 3, 1 }, { 2, 3 }):equal(part))
  end)

  it('by dropout and by its mask', function()
    for _ = 1, 40 do
      local full, offset, shape = random_slice(g)
      local x = randn(g, full)
      local whole = ours.dropout(x, 0.3, 'k', 5, 6, 7)
      local part = ours.dropout(cut(x, offset, shape), 0.3, 'k', 5, 6, 7, offset, full)
      assert.is_true(cut(whole, offset, shape):equal(part))
      local mask = ours.dropout_mask(part, 0.3, 'k', 5, 6, 7, offset, full)
      assert.is_true(mask:equal(part:ne(0)))
    end
  end)

  it('by attention, the causal diagonal too', function()
    local q, k, v = randn(g, { 2, 4, 6, 3 }), randn(g, { 2, 4, 6, 3 }), randn(g, { 2, 4, 6, 3 })
    local whole = ours.attention_dropout(q, k, v, nil, 0.4, true, nil, 'k', 1, 2, 3)
    local offset, full = { 1, 2, 3, 0 }, { 2, 4, 6, 6 }
    local heads = function(x) return x:narrow(0, 1, 1):narrow(1, 2, 2) end
    local part = ours.attention_dropout(heads(q):narrow(2, 3, 3), heads(k), heads(v), nil, 0.4,
      true, nil, 'k', 1, 2, 3, offset, full)
    assert.is_true((heads(whole):narrow(2, 3, 3) - part):abs():max():item() < 1e-15)
  end)
end)

describe('dropout', function()
  each_isa(it, 'is the mask times 1 / (1 - p), rounded once', function()
    for _, dtype in ipairs { 'float32', 'bfloat16', 'float16', 'float64' } do
      for _, n in ipairs { 1, 15, 16, 63, 65, 1000, 2049 } do
        local x = randn(T.generator(n), { n }):mul_(1e3):to(dtype)
        x[0] = 0 / 0
        local kept = ours.dropout_mask(x, 0.3, 'k', 1, 2, 3)
        local scale = T.tensor({ 1 / 0.7 }, { dtype = dtype == 'float64' and dtype or 'float32' })
        local want = (x:to(dtype == 'float64' and dtype or 'float32') * scale):to(dtype)
        want = T.where(kept, want, T.zeros({}, { dtype = dtype }))
        local got = ours.dropout(x, 0.3, 'k', 1, 2, 3)
        assert.is_true(want:nan_to_num(7):equal(got:nan_to_num(7)), dtype .. ' ' .. n)
      end
    end
  end)
end)

describe('draws', function()
  it('do not depend on the number of threads', function()
    local threads = door.get_num_threads()
    local function draw(n)
      door.set_num_threads(n)
      local x = ours.fill_normal_(T.empty { 300, 301 }, 0, 1, 'w', 1)
      return x, ours.dropout(x, 0.1, 'k', 1, 0, 0)
    end
    local a, b = draw(1)
    local c, d = draw(2)
    door.set_num_threads(threads)
    assert.is_true(a:equal(c) and b:equal(d))
  end)

  it('are the same in float32, rounded, and in any layout', function()
    for name, numbers in require('nnscaler.sorted').sorted_pairs(fills) do
      local a = { T.empty({ 7, 9 }, f64), unpack(numbers) }
      local b = { T.empty { 9, 7 }:t(), unpack(numbers) }
      a[#a + 1], a[#a + 2], b[#b + 1], b[#b + 2] = 'w', 3, 'w', 3
      assert.is_true(ours[name](unpack(a)):to('float32'):equal(ours[name](unpack(b))))
    end
    local x = randn(T.generator(1), { 5, 8 })
    assert.is_true(ours.dropout(x:t(), 0.5, 'k', 1, 0, 0)
      :equal(ours.dropout(x:t():contiguous(), 0.5, 'k', 1, 0, 0)))
  end)

  it('have the moments they should', function()
    local x = ours.fill_normal_(T.empty({ 100000 }, f64), 1, 2, 'w', 3)
    assert.is_true(math.abs(x:mean():item() - 1) < 0.03 and math.abs(x:std():item() - 2) < 0.03)
    x = ours.fill_uniform_(x, -1, 3, 'w', 3)
    assert.is_true(math.abs(x:mean():item() - 1) < 0.02)
    assert.is_true(math.abs(x:var():item() - 16 / 12) < 0.02)
    assert.is_true(x:min():item() >= -1 and x:max():item() <= 3)
    for _, p in ipairs { 0.1, 0.5, 0.9 } do
      local kept = ours.dropout_mask(x, p, 'k', 1, 2, 3):to('float64'):mean():item()
      assert.is_true(math.abs(kept - (1 - p)) < 0.008)
    end
  end)

  it('keep everything at p = 0 and nothing at p = 1', function()
    local x = randn(T.generator(1), { 70 })
    assert.is_true(ours.dropout(x, 0, 'k', 1, 0, 0):equal(x))
    assert.equal(0, ours.dropout(x, 1, 'k', 1, 0, 0):abs():sum():item())
  end)

  it('of wrong arguments are refused', function()
    local x = T.ones { 2, 3 }
    for message, args in require('nnscaler.sorted').sorted_pairs {
      ['[ops.dropout] probability 1.5; expected 0 to 1'] = { 1.5, 'k', 1, 0, 0 },
      ['[ops.random] seed -1; expected 0 to 2^53 - 1'] = { 0.5, 'k', -1, 0, 0 },
      ['[ops.random] step 4294967296, micro-batch 0; expected 0 to 2^32 - 1'] =
        { 0.5, 'k', 1, 4294967296, 0 },
      ['[ops.random] offset and full are given together or not at all'] =
        { 0.5, 'k', 1, 0, 0, { 0, 0 } },
      ['[ops.slice] a slice of shape [2, 3] at [0, 2] is not inside a tensor of [4, 4]'] =
        { 0.5, 'k', 1, 0, 0, { 0, 2 }, { 4, 4 } },
    } do
      local ok, err = pcall(ours.dropout, x, unpack(args))
      assert.is_false(ok)
      assert.is_truthy(tostring(err):find(message, 1, true), tostring(err))
    end
  end)
end)

describe('dropout', function()
  it('is x · mask / (1 - p), and so is its derivative', function()
    local g = T.generator(2)
    for _, dtype in ipairs { 'float64', 'float32' } do
      local x = randn(g, { 33, 65 }):to(dtype):detach():requires_grad_()
      local other = x:detach():clone():requires_grad_()
      local mask = ours.dropout_mask(x, 0.25, 'k', 1, 2, 3)
      local y, z = ours.dropout(x, 0.25, 'k', 1, 2, 3), other * mask / 0.75
      local dy = randn(g, { 33, 65 }):to(dtype)
      y:backward(dy)
      z:backward(dy)
      local close = dtype == 'float64' and 1e-15 or 1e-6
      assert.is_true((y - z):abs():max():item() <= close * z:abs():max():item())
      assert.is_true((x.grad - other.grad):abs():max():item() <= close * dy:abs():max():item())
    end
  end)
end)

-- Attention of plain ATen operators, with the mask as a tensor.
local function reference(q, k, v, a, p, mask)
  local repeats = q.shape[2] / k.shape[2]
  k, v = k:repeat_interleave(repeats, 1), v:repeat_interleave(repeats, 1)
  local scores = q:matmul(k:transpose(-2, -1)) * (a.scale or 1 / math.sqrt(q.shape[4]))
  if a.causal then
    local past = aten.ones({ q.shape[3], k.shape[3] }, { dtype = 'bool' }):tril()
    scores = scores:masked_fill(past:logical_not(), -math.huge)
  elseif a.mask and a.mask.dtype == 'bool' then
    scores = scores:masked_fill(a.mask:logical_not(), -math.huge)
  elseif a.mask then
    scores = scores + a.mask
  end
  return (scores:softmax(-1) * mask / (1 - p)):matmul(v)
end

describe('attention with dropout', function()
  local g = T.generator(4)
  local visible = T.tensor({ { true, false, true, true, false, true } }):expand { 5, 6 }
  local cases = {
    { 'alone', 3, {} }, { 'with a scale', 3, { scale = 0.3 } }, { 'causal', 3, { causal = true } },
    { 'with a boolean mask', 3, { mask = visible } },
    { 'with a mask of numbers', 3, { mask = leaf(g, { 4, 5, 6 }) } },
    { 'with shared heads', 2, {} }, { 'with one head', 1, {} },
  }
  for _, case in ipairs(cases) do
    it('equals plain operators ' .. case[1], function()
      local heads, a = case[2], case[3]
      local q = leaf(g, { 2, heads == 3 and 3 or 4, 5, 3 })
      if a.mask and a.mask:dim() == 3 then q = leaf(g, { 2, 4, 5, 3 }) heads = 4 end
      local k, v = leaf(g, { 2, heads, 6, 3 }), leaf(g, { 2, heads, 6, 7 })
      local inputs = { q, k, v, a.mask and a.mask.requires_grad and a.mask or nil }
      local y = ours.attention_dropout(q, k, v, a.mask, 0.3, a.causal or false, a.scale, 'k', 1, 2,
        3, { enable_gqa = true })
      local like = T.empty({ 2, q.shape[2], 5, 6 }, f64)
      local z = reference(q, k, v, a, 0.3, ours.dropout_mask(like, 0.3, 'k', 1, 2, 3))
      assert.is_true((y - z):abs():max():item() < 1e-14)
      local dy, first = randn(g, y.shape), {}
      y:backward(dy)
      for i, x in ipairs(inputs) do first[i], x.grad = x.grad, nil end
      z:backward(dy)
      for i, x in ipairs(inputs) do
        assert.is_true((x.grad - first[i]):abs():max():item() < 1e-13, 'gradient ' .. i)
      end
      -- The operator that programs call gives the same gradients without autograd.
      local results = T.no_grad(function()
        return { ours.attention_dropout_backward(dy, q, k, v, a.mask, 0.3, a.causal or false,
          a.scale, 'k', 1, 2, 3, { true, true, true, inputs[4] ~= nil }, { enable_gqa = true }) }
      end)
      for i in ipairs(inputs) do assert.is_true(results[i]:equal(first[i])) end
    end)
  end

  it('gives zero to a query that sees nothing', function()
    local q = randn(g, { 1, 1, 2, 3 })
    local mask = T.tensor { { true, true }, { false, false } }
    local y = ours.attention_dropout(q, q, q, mask, 0.5, false, nil, 'k', 1, 2, 3)
    assert.equal(0, y:select(2, 1):abs():sum():item())
  end)

  it('refuses a mask beside causal, and heads that do not fit', function()
    local q, k = randn(g, { 1, 4, 2, 3 }), randn(g, { 1, 3, 2, 3 })
    assert.error_matches(function()
      ours.attention_dropout(q, q, q, visible, 0.5, true, nil, 'k', 1, 2, 3)
    end, 'causal and a mask; expected one of them')
    assert.error_matches(function()
      ours.attention_dropout(q, k, k, nil, 0.5, true, nil, 'k', 1, 2, 3, { enable_gqa = true })
    end, '4 query heads, 3 key heads; expected a multiple')
  end)
end)
