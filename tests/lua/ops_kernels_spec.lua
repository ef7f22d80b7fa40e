--- Our CPU kernels against plain ATen in float64: values, derivatives, odd shapes, views, and the
--- same bits on one thread and on two.
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local door = require 'nnscaler._C.tensor'
local each_isa = require 'tests.lua.support.each_isa'
local on_threads = require 'tests.lua.support.threads'
local ours = require('nnscaler.ops').nnscaler

local train = require 'nnscaler._C.train'

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

describe('gelu', function()
  -- x Φ(x) and Φ(x) + x φ(x) by erfc, which does not cancel.
  local function exact(x)
    local below = aten.erfc(x * -math.sqrt(0.5)) * 0.5
    local density = aten.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return x * below, below + x * density
  end

  each_isa(it, 'is accurate down to its tails', function()
    local x = T.arange(-12.9, 14, 0.0003, { dtype = 'float64' }):to('float32')
    local value, slope = exact(x:to('float64'))
    assert.is_true(relative(ours.gelu(x), value) < 1e-6)
    local mine = ours.gelu_backward(aten.ones_like(x), x)
    assert.is_true((mine:to('float64') - slope):abs():amax():item() < 3e-7)
    -- Away from its root at -0.75 the derivative is as good as the value.
    local left = x:lt(-1.5)
    assert.is_true(relative(mine:masked_select(left), slope:masked_select(left)) < 2e-6)
  end)

  each_isa(it, 'passes on what is not finite', function()
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
    each_isa(it, 'equals ATen with ' .. approximate, function()
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
        assert.is_true(error_of(y32, aten.gelu(x, how)) < 1e-6)
        -- The derivative has a root, near which only its absolute error is small.
        local gap = g32:to('float64') - aten.gelu_backward(d, x, how)
        assert.is_true(x:numel() == 0 or gap:abs():amax():item() < 5e-7 * d:abs():amax():item())
      end
    end)

    each_isa(it, 'takes views with ' .. approximate, function()
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

  each_isa(it, 'refuses what it does not know', function()
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
    for _, causal in ipairs { false, true } do
      local what = ('equals its parts in %s%s'):format(dtype, causal and ', causal' or '')
      each_isa(it, what, function()
        local isa = door.build_info().isa
        -- Without fused multiply-adds products are rounded too.
        local single = (isa == 'plain' or isa == 'sse4') and 3e-6 or 2e-6
        local limit = dtype == 'float32' and single or 1e-12
        for i, shape in ipairs(shapes) do
          local q, k, v, grad = views(shape[1], shape[2], shape[3], shape[4], shape[5], dtype)
          local scale = i % 2 == 0 and 0.3 or 1 / math.sqrt(shape[5])
          local how = { scale = scale }
          -- ATen's kernel, which serves float64, may change bits with the threads.
          local run = dtype == 'float32' and on_threads or function(fn) return fn() end
          local mine = { run(function()
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

  each_isa(it, 'takes rows whose elements lie apart', function()
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

  each_isa(it, 'lays out its results so that joining heads copies nothing', function()
    local q, k, v, grad = views(2, 3, 8, 8, 16, 'float32')
    local out, sums = ours.attention(q, k, v, true)
    assert.is_true(out:transpose(1, 2):is_contiguous())
    local dq, dk, dv = ours.attention_backward(grad, q, k, v, out, sums, true)
    for i, d in ipairs { dq, dk, dv } do
      assert.same({ 8 * 3 * 48, 16, 3 * 48, 1 }, d:stride())
      assert.equal((i - 1) * 48, d:storage_offset())
    end
  end)

  each_isa(it, 'takes empty batches and passes on NaN', function()
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

  each_isa(it, 'refuses shapes that do not fit', function()
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

describe('attention with dropout', function()
  local shapes = { { 2, 3, 37, 41, 16 }, { 1, 2, 64, 64, 32 }, { 1, 2, 130, 130, 3 },
    { 1, 1, 1, 3, 2 }, { 2, 2, 5, 300, 8 } }

  for _, dtype in ipairs { 'float32', 'float64' } do
    local limit = dtype == 'float32' and 3e-6 or 1e-12
    for _, placed in ipairs { false, true } do
      local what = ('equals its parts in %s%s'):format(dtype, placed and ', as a part' or '')
      each_isa(it, what, function()
        for i, shape in ipairs(shapes) do
          local batch, heads, length, keys, width = unpack(shape)
          local causal = length == keys
          local function some(n) return randn({ batch, heads, n, width }, dtype) end
          local q, k, v, grad = some(length), some(keys), some(keys), some(length)
          local offset = placed and { 1, 2, causal and 0 or 3, 0 } or nil
          local full = placed and { batch + 1, heads + 5, causal and length or length + 9, keys }
            or nil
          local function call(name, ...)
            local args = { n = select('#', ...), ... }
            local last = { 'k', 7, 3, 1, offset, full }
            for j = 1, 6 do args[args.n + j] = last[j] end
            return ours[name](unpack(args, 1, args.n + 6))
          end
          local mine = { on_threads(function()
            local out, sums = call('dropped_attention', q, k, v, 0.3, causal, nil)
            return out, call('dropped_attention_backward', grad, q, k, v, out, sums, 0.3, causal,
              nil)
          end) }
          local exact = {}
          for j, x in ipairs { grad, q, k, v } do exact[j] = x:to 'float64' end
          local dy, eq, ek, ev = unpack(exact)
          local truth = { (ours.attention_dropout(eq, ek, ev, nil, 0.3, causal, nil, 'k', 7, 3, 1,
            offset, full)) }
          local all = { true, true, true, false }
          truth[2], truth[3], truth[4] = ours.attention_dropout_backward(dy, eq, ek, ev, nil, 0.3,
            causal, nil, 'k', 7, 3, 1, all, offset, full)
          for part = 1, 4 do
            local gap = error_of(mine[part], truth[part])
            assert.is_true(gap < limit, ('shape %d, result %d: %g'):format(i, part, gap))
          end
        end
      end)
    end
  end

  each_isa(it, 'keeps all or nothing without drawing', function()
    local q = randn({ 1, 2, 6, 4 }, 'float32')
    local out = ours.dropped_attention(q, q, q, 1, true, nil, 'k', 7, 3, 1)
    assert.equal(0, out:abs():amax():item())
    out = ours.dropped_attention(q, q, q, 0, true, nil, 'k', 7, 3, 1)
    assert.is_true(error_of(out, (ours.attention(q, q, q, true))) < 1e-6)
  end)

  each_isa(it, 'refuses what does not fit', function()
    local q = randn({ 1, 2, 6, 4 }, 'float32')
    assert.error_matches(function()
      ours.dropped_attention(q, q, q, 1.5, true, nil, 'k', 7, 3, 1)
    end, 'probability 1.5; expected 0 to 1', 1, true)
    assert.error_matches(function()
      ours.dropped_attention(q, q, q, 0.5, true, nil, 'k', 7, 3, 1, { 0, 0, 0, 0 })
    end, 'offset and full are given together', 1, true)
  end)
end)

describe('cross_entropy', function()
  each_isa(it, 'equals ATen with every reduction', function()
    for _, shape in ipairs { { 1, 1 }, { 7, 65 }, { 300, 13 }, { 33, 1000 }, { 0, 5 } } do
      for reduction = 0, 2 do
        for _, smoothing in ipairs { 0, 0.1 } do
          local x = (randn(shape) * 3):to('float32')
          local at = T.randint(0, shape[2], { shape[1] }, { generator = g })
          local ignored = shape[1] > 1 and at:select(0, 0):item() or -100
          local grad = reduction == 0 and randn({ shape[1] }, 'float32') or randn({}, 'float32')
          for _, dtype in ipairs { 'float32', 'float64' } do
            local limit = dtype == 'float32' and 1e-6 or 1e-12
            local leaf = x:to('float64'):requires_grad_()
            local truth = aten.cross_entropy_loss(leaf, at, nil, reduction, ignored, smoothing)
            truth:backward(grad:to('float64'))
            local own, d = x:to(dtype), grad:to(dtype)
            local loss, _, dx = on_threads(function()
              local loss, sums, weight = ours.cross_entropy(own, at, reduction, ignored, smoothing)
              return loss, sums, ours.cross_entropy_backward(d, own, at, sums, weight, reduction,
                ignored, smoothing)
            end)
            if shape[1] > 0 then
              local off = (loss:to('float64') - truth:detach()):abs():amax():item()
              assert.is_true(off < limit * math.max(1, truth:detach():abs():amax():item()))
              -- A row that is right has a gradient that cancels: measured by what cancels.
              local share = reduction == 1 and 1 / shape[1] or 1
              local gap = (dx:to('float64') - leaf.grad):abs():amax():item()
              assert.is_true(gap < limit * share * grad:abs():amax():item())
            else
              assert.same(truth.shape, loss.shape)
              assert.same(shape, dx.shape)
            end
          end
        end
      end
    end
  end)

  each_isa(it, 'takes views and passes on NaN', function()
    local x = randn({ 9, 6 }, 'float32')
    local at = T.arange(12, { dtype = 'int64' }):remainder(9):slice(0, 0, 12, 2)
    local a, s = ours.cross_entropy(x:t(), at)
    local b, t = ours.cross_entropy(x:t():contiguous(), at:contiguous())
    assert.is_true(a:equal(b) and s:equal(t))
    local bad = T.full({ 1, 9 }, 0 / 0)
    assert.is_true(ours.cross_entropy(bad, T.zeros({ 1 }, { dtype = 'int64' })):isnan():item())
  end)

  each_isa(it, 'refuses what does not fit', function()
    local x, at = randn { 2, 3 }, T.tensor({ 0, 3 }, { dtype = 'int64' })
    assert.error_matches(function() ours.cross_entropy(x, at) end,
      'target 3 of row 1; expected 0 to 2', 1, true)
    assert.error_matches(function() ours.cross_entropy(x, at:to('float64')) end,
      'target Double [2]; expected', 1, true)
    assert.error_matches(function() ours.cross_entropy(x, at, 3) end,
      'reduction 3; expected 0, 1 or 2', 1, true)
    assert.error_matches(function() ours.cross_entropy(x, at, 1, -100, 2) end,
      'label_smoothing 2; expected 0 to 1', 1, true)
    assert.error_matches(function()
      ours.cross_entropy_backward(x, x, at, x, T.ones({}))
    end, '6 gradients and 6 sums of rows; expected 1 and 2', 1, true)
  end)
end)

describe('join', function()
  it('is a view where parts lie side by side, else cat', function()
    local x = randn { 4, 6, 5 }
    local a, b, c = x:narrow(1, 0, 2), x:narrow(1, 2, 1), x:narrow(1, 3, 3)
    local all = ours.join({ a, b, c }, -2)
    assert.is_true(all:equal(x))
    all:select(0, 0):fill_(7)
    assert.is_true(a:select(0, 0):eq(7):all():item())
    for _, parts in ipairs { { b, a }, { a, c }, { a, randn { 4, 1, 5 } } } do
      local joined = ours.join(parts, 1)
      assert.is_true(joined:equal(aten.cat(parts, 1)))
      local before = parts[1]:clone()
      joined:fill_(3)
      assert.is_true(parts[1]:equal(before))
    end
    assert.error_matches(function() ours.join({ a }, 3) end,
      'dimension 3 of tensors of 3 dimensions', 1, true)
    assert.error_matches(function() ours.join({}, 0) end, 'no tensors', 1, true)
  end)
end)

describe('derivatives of layers', function()
  -- Gradients that LibTorch's autograd gives for a sum weighted by `weights`.
  local function autograd(call, weights, ...)
    local inputs = { ... }
    for i, x in ipairs(inputs) do inputs[i] = x:detach():requires_grad_() end
    (call(unpack(inputs)) * weights):sum():backward()
    for i, x in ipairs(inputs) do inputs[i] = x.grad end
    return unpack(inputs)
  end
  local function near(want, got)
    assert.same(want.shape, got.shape)
    if want:numel() == 0 then return end
    assert.is_true((want - got):abs():max():item() <= 1e-13)
  end

  it('of linear are those of autograd, laid out in any way', function()
    for _, lead in ipairs { {}, { 5 }, { 2, 3 }, { 2, 0 } } do
      local function sizes(n)
        local list = { unpack(lead) }
        list[#list + 1] = n
        return list
      end
      local x, w, dy = randn(sizes(4)), randn { 6, 4 }, randn(sizes(6))
      local dx, dw = autograd(aten.linear, dy, x, w)
      near(dx, ours.linear_input(dy, w))
      near(dw, ours.linear_weight(dy, x))
    end
    local x, dy = randn { 4, 3, 2 }, randn { 4, 3, 2 }
    near(ours.linear_weight(dy:transpose(0, 1):contiguous(), x:transpose(0, 1):contiguous()),
      ours.linear_weight(dy:transpose(0, 1), x:transpose(0, 1)))
    assert.error_matches(function() ours.linear_input(x, dy) end, 'ops.linear_input', 1, true)
    assert.error_matches(function() ours.linear_weight(x, randn { 5, 3, 2 }) end,
      'ops.linear_weight', 1, true)
  end)

  it('of the root-mean-square norm are those of autograd', function()
    local x, w, dy = randn { 2, 5, 4 }, randn { 4 }, randn { 2, 5, 4 }
    local y, rstd = ours.rms_norm(x, { 4 }, w, 1e-5)
    near(aten.rms_norm(x, { 4 }, w, 1e-5), y)
    local dx, dw = autograd(function(a, b) return aten.rms_norm(a, { 4 }, b, 1e-5) end, dy, x, w)
    local a, b = ours.rms_norm_backward(dy, x, { 4 }, rstd, w, { true, true })
    near(dx, a)
    near(dw, b)
    local plain, r = ours.rms_norm(x, { 5, 4 }, nil, 1e-5)
    near(aten.rms_norm(x, { 5, 4 }, nil, 1e-5), plain)
    near(autograd(function(z) return aten.rms_norm(z, { 5, 4 }, nil, 1e-5) end, dy, x),
      (ours.rms_norm_backward(dy, x, { 5, 4 }, r, nil, { true, false })))
    assert.error_matches(function() ours.rms_norm(x, { 3 }, nil, 1e-5) end, 'ops.norm', 1, true)
  end)
end)

it('kernels for engines refuse to be differentiated', function()
  local x = randn({ 3, 4 }):requires_grad_()
  assert.error_matches(function() ours.gelu(x) end, 'nnscaler::gelu has no derivative', 1, true)
  assert.error_matches(function() ours.join { x } end, 'nnscaler::join has no derivative', 1, true)
  T.no_grad(function() assert.same({ 3, 4 }, ours.gelu(x).shape) end)
end)

describe('the norm of gradients', function()
  -- The same with every instruction set: ranks of one run may be on different processors.
  local first = {}
  each_isa(it, 'is that of float64, and scales', function()
    local generator = T.generator(9)
    for _, n in ipairs { 0, 1, 7, 8, 9, 33, 16384, 40001 } do
      for _, size in ipairs { 1e-25, 1, 1e15 } do
        local wide = T.randn({ n }, { generator = generator, dtype = 'float64' }) * size
        for _, x in ipairs { wide:float(), wide } do
          local want = (x:double() * 0.5):pow(2):sum():sqrt():item()
          local norm = train.scale_and_norm({ x }, 0.5)
          assert.is_true(math.abs(norm - want) <= 1e-12 * want,
            ('%d: %g, %g'):format(n, norm, want))
          local key = ('%s %d %g'):format(x.dtype, n, size)
          first[key] = first[key] or norm
          assert.equal(first[key], norm)
          assert.is_true(math.abs(x:double():pow(2):sum():sqrt():item() - want) <= 1e-12 * want)
        end
      end
    end
  end)
end)
