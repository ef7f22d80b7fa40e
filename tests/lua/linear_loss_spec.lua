--- The cross-entropy of a linear layer whose scores are never whole: against whole scores, its
--- memory, what it refuses.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local core = require 'nnscaler._C.tensor'
local message = require 'tests.lua.support.message'
local ours = require('nnscaler.ops').nnscaler

local g = T.generator(3)
local function randn(shape, dtype)
  return T.randn(shape, { generator = g, dtype = 'float64' }):to(dtype or 'float64')
end

-- Texts of 5 tokens, width 8, 11 classes; two targets do not count.
local x, weight = randn { 3, 5, 8 }, randn { 11, 8 }
local target = T.randint(0, 11, { 3, 5 }, { dtype = 'int64', generator = g })
target[0][1], target[2][4] = -100, -100

local function near(a, b, limit)
  local scale = b:abs():amax():item()
  return (a:to 'float64' - b):abs():amax():item() <= limit * scale
end

local function whole(options)
  return F.cross_entropy(x:matmul(weight:t()):flatten(0, -2), target:flatten(), options)
end

describe('linear_cross_entropy', function()
  for _, how in ipairs { 'mean', 'sum', 'none' } do
    it('is that of whole scores, by ' .. how, function()
      for _, chunk in ipairs { 1, 4, 15, 1000 } do
        local loss = F.linear_cross_entropy(x, weight, target, { reduction = how, chunk = chunk })
        assert.is_true(near(loss:flatten(), whole({ reduction = how }):flatten(), 1e-13), chunk)
      end
    end)
  end

  it('leaves out the labels that it is told to', function()
    local loss = F.linear_cross_entropy(x, weight, target:clamp_min(0),
      { reduction = 'sum', ignore_index = 0, chunk = 2 })
    local want = F.cross_entropy(x:matmul(weight:t()):flatten(0, -2),
      target:clamp_min(0):flatten(), { reduction = 'sum', ignore_index = 0 })
    assert.is_true(near(loss, want, 1e-13))
  end)

  it('sums 16-bit scores in float32', function()
    for _, dtype in ipairs { 'bfloat16', 'float16' } do
      local a, w = x:to(dtype), weight:to(dtype)
      local loss, dx, dw = ours.linear_cross_entropy_gradients(a, w, target, -100, 4,
        { true, true, true })
      assert.same({ 'float32', dtype, dtype }, { loss.dtype, dx.dtype, dw.dtype })
      local exact, ex, ew = ours.linear_cross_entropy_gradients(a:to 'float64', w:to 'float64',
        target, -100, 4, { true, true, true })
      for _, pair in ipairs { { loss, exact }, { dx, ex }, { dw, ew } } do
        assert.is_true(near(pair[1], pair[2], dtype == 'float16' and 4e-3 or 3e-2), dtype)
      end
    end
  end)

  it('holds one chunk of scores beside its gradients', function()
    local rows, width, classes, chunk = 2048, 64, 8192, 128
    local a, w = randn({ rows, width }, 'float32'), randn({ classes, width }, 'float32')
    local y = T.randint(0, classes, { rows }, { dtype = 'int64', generator = g })
    collectgarbage()
    local before = core.memory(true)
    ours.linear_cross_entropy_gradients(a, w, y, -100, chunk, { true, true, true })
    local _, peak = core.memory()
    local form = 4 * (chunk * classes + rows * width + classes * width)
    local ratio = (peak - before) / form
    assert.is_true(ratio >= 0.95 and ratio <= 1.05, ('%.3f of the closed form'):format(ratio))
  end)

  it('holds one chunk of scores in a derivative whose classes are apart, too', function()
    local rows, width, classes, chunk = 2048, 64, 8192, 128
    local a, w = randn({ rows, width }, 'float32'), randn({ classes, width }, 'float32')
    local y = T.randint(0, classes, { rows }, { dtype = 'int64', generator = g })
    local _, sums = ours.linear_scores(a, w, y, chunk)
    local one = aten.ones_like(sums)
    collectgarbage()
    local before = core.memory(true)
    ours.linear_scores_backward(one, one, a, w, y, sums, chunk, { true, true })
    local _, peak = core.memory()
    local form = 4 * (chunk * classes + rows * width + classes * width)
    local ratio = (peak - before) / form
    assert.is_true(ratio >= 0.95 and ratio <= 1.05, ('%.3f of the closed form'):format(ratio))
  end)

  it('is refused where operands do not fit', function()
    local function refused(...) return message(ours.linear_cross_entropy, ...) end
    assert.matches('target 11 of row 0; expected 0 to 10',
      refused(x, weight, target:zeros_like() + 11))
    assert.matches('chunk = 0; expected 1 row at least', refused(x, weight, target, 2, -100, 0))
    assert.matches('reduction 1; expected 0 %(none%) or 2 %(sum%)', refused(x, weight, target, 1))
    assert.matches('weight Double %[11, 7%]', refused(x, randn { 11, 7 }, target))
    assert.matches("reduction 'all'; expected none, mean or sum",
      message(F.linear_cross_entropy, x, weight, target, { reduction = 'all' }))
  end)
end)
