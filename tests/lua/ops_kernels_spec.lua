--- Our CPU kernels against plain ATen in float64: values, derivatives, odd shapes, views, and the
--- same bits on one thread and on two.
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local door = require 'nnscaler._C.tensor'
local ours = require('nnscaler.ops').nnscaler

local g = T.generator(5)
local function randn(shape, dtype)
  return T.randn(shape, { generator = g, dtype = 'float64' }):to(dtype or 'float64')
end

-- Largest error, of an element or relative to the largest element of the truth.
local function error_of(x, truth)
  assert.same(truth.shape, x.shape)
  if x:numel() == 0 then return 0 end
  local scale = math.max(truth:abs():amax():item(), 1e-30)
  return (x:to('float64') - truth:to('float64')):abs():amax():item() / scale
end

-- Largest error of an element relative to itself.
local function relative(x, truth)
  return ((x:to('float64') - truth) / truth):abs():amax():item()
end

-- What fn returns, asserted to be the same on one thread and on two.
local function on_threads(fn)
  local before = door.get_num_threads()
  door.set_num_threads(1)
  local one = { fn() }
  door.set_num_threads(2)
  local two = { fn() }
  door.set_num_threads(before)
  for i = 1, #one do assert.is_true(one[i]:equal(two[i])) end
  return unpack(one)
end

describe('gelu', function()
  -- x Φ(x) and Φ(x) + x φ(x) by erfc, which does not cancel.
  local function exact(x)
    local below = aten.erfc(x * -math.sqrt(0.5)) * 0.5
    local density = aten.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return x * below, below + x * density
  end

  it('is accurate down to its tails', function()
    local x = T.arange(-12.9, 14, 0.0003, { dtype = 'float64' }):to('float32')
    local value, slope = exact(x:to('float64'))
    assert.is_true(relative(ours.gelu(x), value) < 1e-6)
    local mine = ours.gelu_backward(aten.ones_like(x), x)
    assert.is_true((mine:to('float64') - slope):abs():amax():item() < 3e-7)
    -- Away from its root at -0.75 the derivative is as good as the value.
    local left = x:lt(-1.5)
    assert.is_true(relative(mine:masked_select(left), slope:masked_select(left)) < 2e-6)
  end)

  it('passes on what is not finite', function()
    local x = T.tensor({ 1 / 0, 0 / 0, -20, 1e30, -1e30 }, { dtype = 'float32' })
    local y, d = ours.gelu(x):tolist(), ours.gelu_backward(aten.ones_like(x), x):tolist()
    assert.equal(1 / 0, y[1])
    assert.is_true(y[2] ~= y[2] and d[2] ~= d[2])
    assert.equal(0, y[3])
    assert.equal(T.tensor({ 1e30 }, { dtype = 'float32' }):item(), y[4])
    assert.equal(0, y[5])
    assert.same({ 0, 1, 0 }, { d[3], d[4], d[5] })
  end)

  for _, approximate in ipairs { 'none', 'tanh' } do
    it('equals ATen with ' .. approximate, function()
      local how = { approximate = approximate }
      for _, shape in ipairs { {}, { 1 }, { 7 }, { 3, 13 }, { 0, 4 }, { 5, 9, 41 },
        { 150, 257 } } do
        local x, d = randn(shape), randn(shape)
        assert.is_true(error_of(ours.gelu(x, how), aten.gelu(x, how)) < 1e-15)
        assert.is_true(
          error_of(ours.gelu_backward(d, x, how), aten.gelu_backward(d, x, how)) < 1e-15)
        local x32, d32 = x:to('float32'), d:to('float32')
        x, d = x32:to('float64'), d32:to('float64')
        local y32, g32 = on_threads(function()
          return ours.gelu(x32, how), ours.gelu_backward(d32, x32, how)
        end)
        assert.is_true(error_of(y32, aten.gelu(x, how)) < 3e-7)
        assert.is_true(error_of(g32, aten.gelu_backward(d, x, how)) < 5e-7)
      end
    end)

    it('takes views with ' .. approximate, function()
      local how = { approximate = approximate }
      local x, d = randn({ 12, 20 }, 'float32'), randn({ 20, 12 }, 'float32')
      for _, pair in ipairs { { x:t(), d }, { x:slice(1, 0, 20, 2), d:t():slice(1, 0, 20, 2) },
        { x:slice(1, 3, 20), d:t():slice(1, 3, 20) }, { x:t(), x:t() } } do
        local a, b = pair[1], pair[2]
        assert.is_true(ours.gelu(a, how):equal(ours.gelu(a:contiguous(), how)))
        assert.is_true(ours.gelu_backward(b, a, how):equal(
          ours.gelu_backward(b:contiguous(), a:contiguous(), how)))
      end
    end)
  end

  it('refuses what it does not know', function()
    local x = randn { 3 }
    assert.error_matches(function() ours.gelu(x, { approximate = 'erf' }) end,
      "approximate 'erf'; expected 'none' or 'tanh'", 1, true)
    assert.error_matches(function() ours.gelu_backward(randn { 2 }, x) end,
      'gradient of type Double and shape [2]; expected Double [3]', 1, true)
  end)
end)

describe('attention', function()
  local function views(batch, heads, length, keys, width, dtype)
    local qkv = randn({ batch, math.max(length, keys), 3, heads, width }, dtype)
    local function part(i, n) return qkv:select(2, i):narrow(1, 0, n):transpose(1, 2) end
    return part(0, length), part(1, keys), part(2, keys),
      randn({ batch, length, heads, width }, dtype):transpose(1, 2)
  end

  -- Value, logsumexp and gradients in float64, composed of plain operators.
  local function composed(q, k, v, grad, causal, scale)
    q, k, v, grad = q:to('float64'), k:to('float64'), v:to('float64'), grad:to('float64')
    local s = q:matmul(k:transpose(2, 3)) * scale
    if causal then
      local later = T.ones({ q:size(2), k:size(2) }, { dtype = 'bool' }):triu(1)
      s = s:masked_fill(later, -1 / 0)
    end
    local p = s:softmax(-1)
    local dp = grad:matmul(v:transpose(2, 3))
    local ds = p * (dp - (p * dp):sum { dim = { -1 }, keepdim = true })
    ds = ds * scale
    return p:matmul(v), s:logsumexp({ -1 }), ds:matmul(k), ds:transpose(2, 3):matmul(q),
      p:transpose(2, 3):matmul(grad)
  end

  local shapes = { { 4, 4, 32, 32, 16 }, { 2, 3, 256, 256, 64 }, { 1, 1, 1, 1, 1 },
    { 1, 2, 7, 7, 5 }, { 2, 2, 25, 25, 24 }, { 1, 2, 49, 17, 40 }, { 1, 2, 17, 49, 33 },
    { 1, 1, 130, 130, 3 } }

  for _, dtype in ipairs { 'float32', 'float64' } do
    local limit = dtype == 'float32' and 2e-6 or 1e-12
    for _, causal in ipairs { false, true } do
      it(('equals its parts in %s%s'):format(dtype, causal and ', causal' or ''), function()
        for i, shape in ipairs(shapes) do
          local q, k, v, grad = views(shape[1], shape[2], shape[3], shape[4], shape[5], dtype)
          local scale = i % 2 == 0 and 0.3 or 1 / math.sqrt(shape[5])
          local how = { scale = scale }
          local mine = { on_threads(function()
            local out, sums = ours.attention(q, k, v, causal, how)
            return out, sums, ours.attention_backward(grad, q, k, v, out, sums, causal, how)
          end) }
          local truth = { composed(q, k, v, grad, causal, scale) }
          for part = 1, 5 do
            local gap = error_of(mine[part], truth[part])
            assert.is_true(gap < limit, ('shape %d, result %d: %g'):format(i, part, gap))
          end
        end
      end)
    end
  end

  it('takes rows whose elements lie apart', function()
    local q, k, v = randn({ 2, 3, 8, 9 }, 'float32'), randn({ 2, 3, 8, 9 }, 'float32'),
      randn({ 2, 3, 8, 9 }, 'float32')
    local function apart(x) return x:transpose(2, 3):contiguous():transpose(2, 3) end
    local a, s = ours.attention(apart(q), apart(k), apart(v), true)
    assert.is_true(a:equal((ours.attention(q, k, v, true))))
    local one = { ours.attention_backward(apart(q), apart(q), apart(k), apart(v), apart(a), s,
      true) }
    local two = { ours.attention_backward(q, q, k, v, a, s, true) }
    for i = 1, 3 do assert.is_true(one[i]:equal(two[i])) end
  end)

  it('lays out its results so that joining heads copies nothing', function()
    local q, k, v, grad = views(2, 3, 8, 8, 16, 'float32')
    local out, sums = ours.attention(q, k, v, true)
    assert.is_true(out:transpose(1, 2):is_contiguous())
    local dq, dk, dv = ours.attention_backward(grad, q, k, v, out, sums, true)
    for i, d in ipairs { dq, dk, dv } do
      assert.same({ 8 * 3 * 48, 16, 3 * 48, 1 }, d:stride())
      assert.equal((i - 1) * 48, d:storage_offset())
    end
  end)

  it('takes empty batches and passes on NaN', function()
    local q = T.zeros({ 0, 2, 4, 8 })
    local out, sums = ours.attention(q, q, q)
    assert.same({ 0, 2, 4, 8 }, out.shape)
    assert.same({ 0, 2, 4 }, sums.shape)
    assert.same({ 0, 2, 4, 8 }, ours.attention_backward(q, q, q, q, out, sums).shape)
    local x = T.zeros({ 1, 1, 9, 8 })
    local bad = x:masked_fill(T.arange(9):eq(4):unsqueeze(-1), 0 / 0)
    local sees = ours.attention(bad, x, x, true):isnan():any(-1):tolist()[1][1]
    for i = 1, 9 do assert.equal(i == 5, sees[i]) end
    sees = ours.attention(x, bad, x, true):isnan():any(-1):tolist()[1][1]
    for i = 1, 9 do assert.equal(i >= 5, sees[i]) end
  end)

  it('refuses shapes that do not fit', function()
    local q = T.zeros { 1, 2, 4, 8 }
    assert.error_matches(function() ours.attention(q, T.zeros { 1, 2, 4, 6 }, q) end,
      'query Float [1, 2, 4, 8], key Float [1, 2, 4, 6]', 1, true)
    local none = T.zeros { 1, 2, 0, 8 }
    assert.error_matches(function() ours.attention(q, none, none) end,
      '4 queries and no key; expected at least one', 1, true)
    assert.error_matches(function() ours.attention_backward(q, q, q, q, q, q) end,
      'logsumexp [1, 2, 4, 8]; expected the shape of the query', 1, true)
  end)
end)
