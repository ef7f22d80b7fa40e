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
      assert.equal(dtype .. ' float32', got[1].dtype .. ' ' .. got[2].dtype)
      near(dtype, got[1], want[1], 2)
    end)

    it('the derivative of attention, and both with dropout', function()
      local operands = { numbers(2, 2, 37, 8), numbers(2, 2, 37, 8), numbers(2, 2, 37, 8),
        numbers(2, 2, 37, 8) }
      for _, p in ipairs { 0, 0.3 } do
        local draws = { 'a#0', 7, 3, 1 }
        local got, want = both(dtype, function(q, k, v, g)
          if p == 0 then
            local out, sums = own.attention(q, k, v, true)
            return own.attention_backward(g, q, k, v, out, sums, true)
          end
          local out, sums = own.dropped_attention(q, k, v, p, true, nil, unpack(draws))
          local dq, dk, dv = own.dropped_attention_backward(g, q, k, v, out, sums, p, true, nil,
            unpack(draws))
          return dq, dk, dv, out
        end, unpack(operands))
        for i, x in ipairs(got) do
          assert.equal(dtype, x.dtype)
          near(dtype, x, want[i], 4)
        end
      end
    end)

    it('gelu and its derivative', function()
      local x, g = numbers(30, 40), numbers(30, 40)
      local got, want = both(dtype, own.gelu, x)
      assert.equal(dtype, got[1].dtype)
      near(dtype, got[1], want[1], 1)
      got, want = both(dtype, own.gelu_backward, g, x)
      near(dtype, got[1], want[1], 1)
    end)

    it('gelu rounds as a cast does', function()
      for _, count in ipairs { 1, 15, 16, 33, 3000 } do
        local x = (numbers(count) * 3):to(dtype)
        assert.is_true(own.gelu(x):equal(own.gelu(x:to 'float32'):to(dtype)))
      end
      local odd = T.tensor({ 0 / 0, math.huge, 3e38, -0.0, 1e-40 }):to(dtype)
      local got = own.gelu(odd):tolist()
      assert.is_true(got[1] ~= got[1])
      assert.equal(math.huge, got[2])
      assert.equal(0, got[4])
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
