-- Matrix products in tiles, under every instruction set that this processor has, against ATen in
-- float64: odd sizes, views, numbers that are not finite, and the same bits however rows are split.
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local door = require 'nnscaler._C.tensor'
local each_isa = require 'tests.lua.support.each_isa'
local ours = require('nnscaler.ops').nnscaler

local g = T.generator(5)
local function randn(...) return T.randn({ ... }, { generator = g }) end
local function wide(x) return x:to 'float64' end

-- Sums of so many products grow as the root of their number, and each rounds by 2⁻²⁴ of the sum:
-- together, in proportion to the number.
local function near(truth, x, inner)
  assert.same(truth.shape, x.shape)
  assert.equal('float32', x.dtype)
  if x:numel() == 0 then return end
  local most = (wide(x) - truth):abs():amax():item()
  assert.is_true(most <= 2 ^ -22 * (inner + 8), most)
end

-- Rows, inner size, columns: whole tiles and what is left of them, several blocks, none.
local sizes = { { 1, 1, 1 }, { 3, 5, 7 }, { 14, 16, 32 }, { 15, 17, 33 }, { 13, 384, 31 },
  { 29, 385, 65 }, { 230, 40, 64 }, { 300, 800, 10 }, { 0, 4, 3 }, { 4, 0, 3 }, { 4, 3, 0 } }

describe('products in tiles', function()
  each_isa(it, 'equal ATen in float64', function()
    for _, size in ipairs(sizes) do
      local rows, inner, columns = unpack(size)
      local x, w, b = randn(rows, inner), randn(columns, inner), randn(columns)
      local dy = randn(rows, columns)
      near(aten.linear(wide(x), wide(w)), ours.tiled_linear(x, w), inner)
      near(aten.linear(wide(x), wide(w), wide(b)), ours.tiled_linear(x, w, b), inner)
      near(aten.mm(wide(dy), wide(w)), ours.tiled_linear_input(dy, w), columns)
      local dw = aten.mm(wide(dy):t(), wide(x))
      near(dw, ours.tiled_linear_weight(dy, x), rows)
      local out = T.zeros { columns * inner }
      assert.same(dw.shape, ours.tiled_linear_weight(dy, x, out).shape)
      near(dw, out:view { columns, inner }, rows)
    end
  end)

  each_isa(it, 'give an element the same bits in whatever rows it stands', function()
    local x, w = randn(131, 500), randn(70, 500)
    local whole = ours.tiled_linear(x, w)
    for _, part in ipairs { { 0, 64 }, { 64, 67 }, { 5, 1 }, { 100, 31 } } do
      assert.is_true(aten.equal(whole:narrow(0, part[1], part[2]),
        ours.tiled_linear(x:narrow(0, part[1], part[2]), w)))
    end
    local before = door.get_num_threads()
    door.set_num_threads(2)
    local two = ours.tiled_linear(x, w)
    door.set_num_threads(before)
    assert.is_true(aten.equal(whole, two))
  end)

  each_isa(it, 'pass on what is not finite, and large and tiny numbers', function()
    local huge, inf, nan = 1e20, 1 / 0, 0 / 0
    local x = T.tensor({ { huge, -huge }, { inf, 1 }, { nan, 0 }, { 1e-30, 1e-30 } },
      { dtype = 'float32' })
    local w = T.tensor({ { 1, 1 }, { 1, 0 } }, { dtype = 'float32' })
    local y = ours.tiled_linear(x, w):tolist()
    assert.same({ 0, x:tolist()[1][1] }, y[1])
    assert.equal(inf, y[2][1])
    assert.is_true(y[3][1] ~= y[3][1] and y[3][2] ~= y[3][2])
    assert.is_true(math.abs(y[4][1] / 2e-30 - 1) < 1e-6)
  end)

  it('take views, and leading dimensions', function()
    local x, w, dy = randn(2, 5, 20):transpose(0, 1), randn(20, 24):t(), randn(5, 2, 24)
    near(aten.linear(wide(x), wide(w)), ours.tiled_linear(x, w), 20)
    near(aten.matmul(wide(dy), wide(w)), ours.tiled_linear_input(dy, w), 24)
    near(aten.mm(wide(dy):reshape({ 10, 24 }):t(), wide(x):reshape { 10, 20 }),
      ours.tiled_linear_weight(dy, x), 10)
  end)

  it('refuse what does not fit', function()
    local function refused(text, f, ...)
      local arguments = { ... }
      assert.error_matches(function() f(unpack(arguments)) end, text, 1, true)
    end
    local x, w = randn(4, 6), randn(8, 6)
    refused('[ops.tiled_linear] Double [4, 6] on cpu; expected float32', ours.tiled_linear, wide(x),
      wide(w))
    refused('[ops.tiled_linear] operands [4, 6] and [8, 5]; expected one inner size',
      ours.tiled_linear, x, randn(8, 5))
    refused('[ops.tiled_linear] operands [8, 6] and [7]', ours.tiled_linear, x, w, randn(7))
    refused('[ops.tiled_linear_input] operands [4, 6] and [8, 6]', ours.tiled_linear_input, x, w)
    refused('[ops.tiled_linear_weight] operands [4, 6] and [5, 6]', ours.tiled_linear_weight, x,
      randn(5, 6))
  end)
end)
