-- Kernels that do the work of several operators, under every instruction set that this processor
-- has, against plain ATen in float64: values, derivatives, adversarial numbers, odd shapes, views.
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local door = require 'nnscaler._C.tensor'
local each_isa = require 'tests.lua.support.each_isa'
local ours = require('nnscaler.ops').nnscaler
local same_on_threads = require 'tests.lua.support.threads'

local g = T.generator(5)
local function randn(shape, dtype)
  return T.randn(shape, { generator = g, dtype = 'float64' }):to(dtype or 'float64')
end
local function wide(x) return x and x:to 'float64' end

-- Largest error relative to the largest element of the truth.
local function near(truth, x, limit)
  assert.same(truth.shape, x.shape)
  if x:numel() == 0 then return end
  local scale = math.max(truth:abs():amax():item(), 1e-30)
  local most = (wide(x) - truth):abs():amax():item() / scale
  assert.is_true(most <= limit, most)
end

local limits = { float32 = 2e-6, float64 = 1e-14 }

-- What fn returns; of kernels of ours asserted to be the same on one thread and on two.
local function on_threads(dtype, fn)
  if dtype ~= 'float32' then return fn() end
  return same_on_threads(fn)
end

local shapes = { { 5 }, { 1, 1 }, { 3, 7 }, { 2, 3, 16 }, { 0, 4 }, { 40, 33 }, { 700, 129 } }

local function norm_of(x, w, b, eps, centred)
  local mean = centred and x:mean({ -1 }, true) or T.zeros({}, { dtype = 'float64' })
  local rstd = ((x - mean):square():mean({ -1 }, true) + eps):rsqrt()
  local y = (x - mean) * rstd
  if w then y = y * w end
  if b then y = y + b end
  return y, rstd, mean
end
-- Gradients of x, weight and bias.
local function norm_back(d, x, w, eps, centred)
  local _, rstd, mean = norm_of(x, nil, nil, eps, centred)
  local unit = (x - mean) * rstd
  local dw, db = (d * unit):view({ -1, x.shape[#x.shape] }):sum(0), d:view({ -1,
    x.shape[#x.shape] }):sum(0)
  if w then d = d * w end
  local turn = d - unit * (d * unit):mean({ -1 }, true)
  if centred then turn = turn - d:mean({ -1 }, true) end
  return turn * rstd, dw, db
end

describe('norms', function()
  for _, dtype in ipairs { 'float32', 'float64' } do
    each_isa(it, 'equal their formulas in ' .. dtype, function()
      local limit, eps = limits[dtype], 1e-5
      for _, shape in ipairs(shapes) do
        local n = { shape[#shape] }
        for _, affine in ipairs { true, false } do
          local x, y, d = randn(shape, dtype), randn(shape, dtype), randn(shape, dtype)
          local w = affine and randn(n, dtype) or nil
          local b = affine and randn(n, dtype) or nil
          local got = { on_threads(dtype, function() return ours.rms_norm(x, n, w, eps) end) }
          local want = { norm_of(wide(x), wide(w), nil, eps) }
          for i = 1, 2 do near(want[i], got[i], limit) end
          local back = { on_threads(dtype, function()
            return ours.rms_norm_backward(d, x, n, got[2], w, { true, true }, y)
          end) }
          local dx, dw = norm_back(wide(d), wide(x), wide(w), eps)
          near(dx + wide(y), back[1], 4 * limit)
          near(dw, back[2], 4 * limit)
          got = { on_threads(dtype, function() return ours.layer_norm(x, n, w, b, eps) end) }
          want = { norm_of(wide(x), wide(w), wide(b), eps, true) }
          for i, k in ipairs { 1, 3, 2 } do near(want[k], got[i], 4 * limit) end
          back = { on_threads(dtype, function()
            return ours.layer_norm_backward(d, x, n, got[2], got[3], w, b, { true, affine, affine },
              y)
          end) }
          local dx_of, dw_of, db_of = norm_back(wide(d), wide(x), wide(w), eps, true)
          if n[1] > 1 then near(dx_of + wide(y), back[1], 8 * limit) end -- of one element all is 0
          if affine and n[1] > 1 then near(dw_of, back[2], 8 * limit) end
          if affine then near(db_of, back[3], 4 * limit) end
        end
      end
    end)
  end

  each_isa(it, 'make the sum before them too', function()
    for _, shape in ipairs(shapes) do
      local n = { shape[#shape] }
      local x, y, w, b = randn(shape, 'float32'), randn(shape, 'float32'), randn(n, 'float32'),
        randn(n, 'float32')
      local sum, out, rstd = ours.add_rms_norm(x, y, n, w, 1e-5)
      local out_of, rstd_of = ours.rms_norm(x + y, n, w, 1e-5)
      assert.is_true(sum:equal(x + y) and out:equal(out_of) and rstd:equal(rstd_of))
      local made = { ours.add_layer_norm(x, y, n, w, b, 1e-5) }
      local apart = { x + y, ours.layer_norm(x + y, n, w, b, 1e-5) }
      for i = 1, 4 do assert.is_true(made[i]:equal(apart[i])) end
    end
  end)

  each_isa(it, 'take large, tiny and equal numbers, and pass on what is none', function()
    for _, scale in ipairs { 1e15, 1e-15, 1e-30 } do
      local x = randn({ 3, 40 }, 'float32') * scale
      near(norm_of(wide(x), nil, nil, 1e-5), ours.rms_norm(x, { 40 }, nil, 1e-5), 2e-6)
      near(norm_of(wide(x), nil, nil, 1e-5, true), ours.layer_norm(x, { 40 }, nil, nil, 1e-5),
        8e-6)
    end
    local far = randn({ 3, 40 }, 'float32') + 1000 -- a mean that is large beside the variance
    near(norm_of(wide(far), nil, nil, 1e-5, true), ours.layer_norm(far, { 40 }, nil, nil, 1e-5),
      1e-3)
    local flat = T.full({ 2, 24 }, 3, { dtype = 'float32' })
    assert.equal(0, (ours.layer_norm(flat, { 24 }, nil, nil, 1e-5)):abs():amax():item())
    for _, odd in ipairs { 0 / 0, 1 / 0 } do
      local x = T.ones({ 2, 9 }, { dtype = 'float32' })
      x:narrow(0, 0, 1):narrow(1, 8, 1):fill_(odd)
      local y = ours.rms_norm(x, { 9 }, nil, 1e-5)
      assert.is_true(y[0]:isnan():any():item() and not y[1]:isnan():any():item())
    end
  end)

  each_isa(it, 'take views', function()
    local x, d, w = randn({ 12, 20 }, 'float32'), randn({ 12, 20 }, 'float32'), randn({ 12 },
      'float32')
    local y, rstd = ours.rms_norm(x:t(), { 12 }, w, 1e-5)
    assert.is_true(y:equal((ours.rms_norm(x:t():contiguous(), { 12 }, w, 1e-5))))
    local a = ours.rms_norm_backward(d:t(), x:t(), { 12 }, rstd, w, { true, true })
    local b = ours.rms_norm_backward(d:t():contiguous(), x:t():contiguous(), { 12 }, rstd, w,
      { true, true })
    assert.is_true(a:equal(b))
  end)

  it('refuse shapes that do not fit', function()
    assert.error_matches(function() ours.rms_norm(randn { 2, 3 }, { 2 }, nil, 1e-5) end,
      '[ops.norm] an input of 2 dimensions does not end in the 1 that are normalised', nil, true)
  end)
end)

describe('swiglu', function()
  each_isa(it, 'equals silu times the other', function()
    for dtype, limit in pairs(limits) do
      for _, shape in ipairs(shapes) do
        local x, y, d = randn(shape, dtype), randn(shape, dtype), randn(shape, dtype)
        local out = on_threads(dtype, function() return ours.swiglu(x, y) end)
        near(aten.silu(wide(x)) * wide(y), out, limit)
        local dx, dy = on_threads(dtype, function() return ours.swiglu_backward(d, x, y) end)
        near(aten.silu_backward(wide(d) * wide(y), wide(x)), dx, limit)
        near(wide(d) * aten.silu(wide(x)), dy, limit)
      end
    end
  end)

  each_isa(it, 'takes large and tiny numbers as ATen does', function()
    local x = T.tensor({ -1e30, -100, -88, -20, -1e-30, 0, 1e-30, 20, 88, 1e30, 0 / 0 },
      { dtype = 'float32' })
    local one = aten.ones_like(x)
    local want, got = aten.silu(x):tolist(), ours.swiglu(x, one):tolist()
    local slope = ours.swiglu_backward(one, x, one):tolist()
    for i = 1, 10 do
      assert.is_true(math.abs(want[i] - got[i]) <= 1e-6 * math.abs(want[i]) + 1e-35, i)
      assert.is_true(math.abs(slope[i]) <= 1.1, i)
    end
    assert.is_true(got[11] ~= got[11] and slope[11] ~= slope[11])
  end)

  it('takes views and refuses other shapes', function()
    local x, y = randn({ 8, 6 }, 'float32'), randn({ 6, 8 }, 'float32')
    assert.is_true(ours.swiglu(x:t(), y):equal(ours.swiglu(x:t():contiguous(), y)))
    assert.error_matches(function() ours.swiglu(x, y) end, '[ops.swiglu] Float [8, 6] and Float '
      .. '[6, 8]; expected one type and shape', nil, true)
  end)
end)

describe('rope', function()
  local function composed(x, cos, sin)
    local left, right = unpack(x:chunk(2, -1))
    return x * cos + aten.cat({ -right, left }, -1) * sin
  end
  local sizes = { { 2, 3, 5, 8 }, { 1, 4, 6, 2 }, { 2, 2, 7, 64 }, { 3, 34 }, { 0, 2, 3, 4 } }

  each_isa(it, 'equals its six calls', function()
    for dtype, limit in pairs(limits) do
      for _, shape in ipairs(sizes) do
        local table_ = { shape[#shape - 1], shape[#shape] }
        local x, d = randn(shape, dtype), randn(shape, dtype)
        local cos, sin = randn(table_, dtype), randn(table_, dtype)
        near(composed(wide(x), wide(cos), wide(sin)), on_threads(dtype, function()
          return ours.rope(x, cos, sin)
        end), limit)
        local leaf = wide(x):requires_grad_()
        composed(leaf, wide(cos), wide(sin)):backward(wide(d))
        near(leaf.grad, ours.rope_backward(d, cos, sin), limit)
      end
    end
  end)

  it('takes heads as they lie in the projection', function()
    local x = randn({ 2, 5, 3, 8 }, 'float32'):transpose(1, 2)
    local cos, sin = randn({ 5, 8 }, 'float32'), randn({ 5, 8 }, 'float32')
    local y = ours.rope(x, cos, sin)
    assert.is_true(y:equal(ours.rope(x:contiguous(), cos, sin)))
    assert.same(x:stride(), y:stride())
    local part = randn({ 2, 3, 5, 16 }, 'float32'):narrow(3, 4, 8)
    assert.is_true(ours.rope(part, cos, sin):equal(ours.rope(part:contiguous(), cos, sin)))
  end)

  it('refuses tables that do not fit', function()
    local x = randn { 2, 4, 6 }
    assert.error_matches(function() ours.rope(x, randn { 3, 6 }, randn { 3, 6 }) end,
      'expected one type, […, time, width] of an even width and tables [time, width]', nil, true)
  end)
end)

describe('instruction sets', function()
  it('are refused by name', function()
    assert.error_matches(function() door.choose_isa 'avx1024' end, "[ops.isa] instruction set "
      .. "'avx1024'; expected one of this processor: "
      .. table.concat(door.build_info().isas, ', '), nil, true)
  end)

  -- Sums differ in order, so the last bits may.
  it('give one result', function()
    local all = {}
    for i, isa in ipairs(door.build_info().isas) do
      door.choose_isa(isa)
      g = T.generator(9)
      local q, k, v = randn({ 2, 2, 37, 20 }, 'float32'), randn({ 2, 2, 37, 20 }, 'float32'),
        randn({ 2, 2, 37, 20 }, 'float32')
      local out, sums = ours.attention(q, k, v, true)
      local rest = { ours.attention_backward(v, q, k, v, out, sums, true) }
      local dropped, more = ours.dropped_attention(q, k, v, 0.3, true, nil, 'k', 1, 2, 3)
      local back = { ours.dropped_attention_backward(v, q, k, v, dropped, more, 0.3, true, nil, 'k',
        1, 2, 3) }
      local x = randn({ 11, 29 }, 'float32') * 4
      local at = T.randint(0, 29, { 11 }, { generator = g })
      local loss, logs, weight = ours.cross_entropy(x, at)
      all[i] = { out, sums, rest[1], rest[2], rest[3], dropped, back[1], back[2], back[3],
        ours.gelu(x), ours.gelu(x, { approximate = 'tanh' }), ours.gelu_backward(x, x), loss,
        ours.cross_entropy_backward(T.ones({}, { dtype = 'float32' }), x, at, logs, weight),
        ours.dropout(x, 0.4, 'k', 1, 2, 3) }
    end
    door.choose_isa ''
    for i = 2, #all do
      for j = 1, #all[1] do near(wide(all[1][j]), all[i][j], 3e-6) end
      assert.is_true(all[1][15]:equal(all[i][15]))
    end
  end)
end)
