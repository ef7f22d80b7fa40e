-- Our own kernels on 16-bit numbers, against themselves in float64: they compute in float32, so a
-- result is off by the rounding of its own and of what came between.
local T = require 'nnscaler.tensor'
local ops = require 'nnscaler.ops'

local own = ops.nnscaler
local rounding = { bfloat16 = 2 ^ -8, float16 = 2 ^ -11 }
local generator

local function numbers(...)
  return T.randn({ ... }, { dtype = 'float64', generator = generator })
end

-- What a kernel makes of numbers that a dtype can hold; in that dtype, and in float64.
local function both(dtype, call, ...)
  local short, long = {}, {}
  for i, x in ipairs { ... } do
    short[i] = x:is_floating_point() and x:to(dtype) or x
    long[i] = x:is_floating_point() and short[i]:to('float64') or x
  end
  return { call(unpack(short)) }, { call(unpack(long)) }
end

local function near(dtype, got, want, roundings)
  local apart = (got:to('float64') - want):norm():item() / want:norm():item()
  assert(apart <= roundings * rounding[dtype], ('off by %.3g, %.1f roundings'):format(apart,
    apart / rounding[dtype]))
end

for _, dtype in ipairs { 'bfloat16', 'float16' } do
  describe('in ' .. dtype, function()
    before_each(function() generator = T.generator(4) end)

    it('attention', function()
      local q, k, v = numbers(2, 2, 40, 8), numbers(2, 2, 40, 8), numbers(2, 2, 40, 8)
      local got, want = both(dtype, function(a, b, c) return own.attention(a, b, c, true) end, q, k,
        v)
      assert.equal(dtype, got[1].dtype)
      near(dtype, got[1], want[1], 2)
    end)

    it('gelu and its derivative', function()
      local x, g = numbers(30, 40), numbers(30, 40)
      local got, want = both(dtype, own.gelu, x)
      assert.equal(dtype, got[1].dtype)
      near(dtype, got[1], want[1], 1)
      got, want = both(dtype, own.gelu_backward, g, x)
      near(dtype, got[1], want[1], 1)
    end)

    it('rms_norm and its derivative', function()
      local x, w, g = numbers(30, 300) * 3, numbers(300), numbers(30, 300)
      local got, want = both(dtype, function(a, b) return own.rms_norm(a, { 300 }, b, 1e-5) end, x,
        w)
      assert.equal(dtype .. ' float32', got[1].dtype .. ' ' .. got[2].dtype)
      near(dtype, got[1], want[1], 1)
      near(dtype, got[2], want[2], 0.01)
      got, want = both(dtype, function(a, b, c)
        local _, rstd = own.rms_norm(b, { 300 }, c, 1e-5)
        return own.rms_norm_backward(a, b, { 300 }, rstd, c, { true, true })
      end, g, x, w)
      near(dtype, got[1], want[1], 1)
      near(dtype, got[2], want[2], 1)
    end)

    it('cross_entropy and its derivative', function()
      local x = numbers(64, 500) * 2
      local y = T.randint(0, 500, { 64 }, { generator = generator, dtype = 'int64' })
      local got, want = both(dtype, own.cross_entropy, x, y)
      assert.equal(dtype .. ' float32', got[1].dtype .. ' ' .. got[2].dtype)
      near(dtype, got[1], want[1], 1)
      near(dtype, got[2], want[2], 0.01)
      got, want = both(dtype, function(a, b)
        local loss, sums, count = own.cross_entropy(a, b)
        return own.cross_entropy_backward(loss:ones_like(), a, b, sums, count)
      end, x, y)
      assert.equal(dtype, got[1].dtype)
      near(dtype, got[1], want[1], 1)
    end)
  end)
end

describe('float16 on a CPU', function()
  it('lacks operators of LibTorch, which the error names', function()
    local ok, err = pcall(function()
      return ops.aten.linalg_inv(T.ones({ 2, 2 }, { dtype = 'float16' }))
    end)
    assert.is_false(ok)
    assert.matches('aten::linalg_inv.*Half', tostring(err))
  end)
end)
