--- Our CPU kernels beside ATen's at the sizes of the tiny and the baby GPT: microseconds a call,
--- the fastest of many rounds. Run: nnscaler tests/bench/kernels.lua
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local clock = require('nnscaler._C.base').clock
local door = require 'nnscaler._C.tensor'
local ours = require('nnscaler.ops').nnscaler

local g = T.generator(1)
local function randn(...) return T.randn({ ... }, { generator = g }) end

-- Fastest of rounds that fill about a second in all.
local function fastest(fn)
  fn()
  local best, spent = math.huge, 0
  while spent < 0.5 do
    local start = clock()
    fn()
    local took = clock() - start
    best, spent = math.min(best, took), spent + took
  end
  return best * 1e6
end

local function compare(name, mine, theirs)
  local a, b = fastest(mine), fastest(theirs)
  a, b = math.min(a, fastest(mine)), math.min(b, fastest(theirs))
  print(('%-34s ours %9.1f  ATen %9.1f  ratio %.2f'):format(name, a, b, a / b))
end

local function gelu(size, x)
  local grad = x * 0.5
  compare('gelu ' .. size, function() ours.gelu(x) end, function() aten.gelu(x) end)
  compare('gelu_backward ' .. size, function() ours.gelu_backward(grad, x) end,
    function() aten.gelu_backward(grad, x) end)
end

-- Causal attention on views of one [batch, length, 3 · heads · width].
local function attention(size, batch, heads, length, width)
  local all = randn(batch, length, 3, heads, width)
  local q, k, v = all:select(2, 0), all:select(2, 1), all:select(2, 2)
  q, k, v = q:transpose(1, 2), k:transpose(1, 2), v:transpose(1, 2)
  local grad = randn(batch, length, heads, width):transpose(1, 2)
  local out, sums = ours.attention(q, k, v, true)
  compare('attention ' .. size, function() ours.attention(q, k, v, true) end,
    function() aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, true) end)
  compare('attention_backward ' .. size,
    function() ours.attention_backward(grad, q, k, v, out, sums, true) end,
    function()
      aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, sums, 0, true)
    end)
end

-- The same with dropout of 0.2, against softmax and mask as operators of their own.
local function dropped_attention(size, batch, heads, length, width)
  local q, k, v, grad = randn(batch, heads, length, width), randn(batch, heads, length, width),
    randn(batch, heads, length, width), randn(batch, heads, length, width)
  local out, sums = ours.dropped_attention(q, k, v, 0.2, true, nil, 'k', 1, 2, 3)
  local wanted = { true, true, true, false }
  compare('dropped_attention ' .. size,
    function() ours.dropped_attention(q, k, v, 0.2, true, nil, 'k', 1, 2, 3) end,
    function() ours.attention_dropout(q, k, v, nil, 0.2, true, nil, 'k', 1, 2, 3) end)
  compare('dropped_attention_backward ' .. size, function()
    ours.dropped_attention_backward(grad, q, k, v, out, sums, 0.2, true, nil, 'k', 1, 2, 3)
  end, function()
    ours.attention_dropout_backward(grad, q, k, v, nil, 0.2, true, nil, 'k', 1, 2, 3, wanted)
  end)
end

local function cross_entropy(size, rows, classes)
  local x, at = randn(rows, classes), T.randint(0, classes, { rows }, { generator = g })
  local grad = T.ones({})
  local _, sums, weight = ours.cross_entropy(x, at)
  local logs = aten.log_softmax(x, -1)
  compare('cross_entropy ' .. size, function() ours.cross_entropy(x, at) end,
    function() aten.nll_loss_forward(aten._log_softmax(x, 1, false), at, nil, 1, -100) end)
  compare('cross_entropy_backward ' .. size,
    function() ours.cross_entropy_backward(grad, x, at, sums, weight) end,
    function()
      local d = aten.nll_loss_backward(grad, logs, at, nil, 1, -100, weight)
      aten._log_softmax_backward_data(d, logs, 1, 'float32')
    end)
end

-- A norm behind a residual addition, whose gradient meets that of the branch beside it.
local function norms(size, rows, width)
  local x, y, d = randn(rows, width), randn(rows, width), randn(rows, width)
  local n, w = { width }, randn(width)
  local _, mean, rstd = ours.layer_norm(x, n, w, nil, 1e-5)
  compare('layer_norm ' .. size, function() ours.layer_norm(x, n, w, nil, 1e-5) end,
    function() aten.native_layer_norm(x, n, w, nil, 1e-5) end)
  compare('add_layer_norm ' .. size, function() ours.add_layer_norm(x, y, n, w, nil, 1e-5) end,
    function() aten.native_layer_norm(x + y, n, w, nil, 1e-5) end)
  local wanted = { true, true, false }
  compare('layer_norm_backward ' .. size, function()
    ours.layer_norm_backward(d, x, n, mean, rstd, w, nil, wanted, y)
  end, function()
    return aten.native_layer_norm_backward(d, x, n, mean, rstd, w, nil, wanted) + y
  end)
  local _, scale = ours.rms_norm(x, n, w, 1e-5)
  compare('add_rms_norm ' .. size, function() ours.add_rms_norm(x, y, n, w, 1e-5) end,
    function() aten._fused_rms_norm(x + y, n, w, 1e-5) end)
  compare('rms_norm_backward ' .. size, function()
    ours.rms_norm_backward(d, x, n, scale, w, { true, true }, y)
  end, function() -- ATen has no kernel of it here
    local unit, scaled = x * scale, d * w
    local along = aten.mean(scaled * unit, { -1 }, true)
    return (scaled - unit * along) * scale + y, (d * unit):sum { 0 }
  end)
end

-- Against silu and a product, and their derivatives.
local function swiglu(size, rows, width)
  local x, y, d = randn(rows, width), randn(rows, width), randn(rows, width)
  local open = aten.silu(x)
  compare('swiglu ' .. size, function() ours.swiglu(x, y) end,
    function() return aten.silu(x) * y end)
  compare('swiglu_backward ' .. size, function() ours.swiglu_backward(d, x, y) end,
    function() return aten.silu_backward(d * y, x), d * open end)
end

-- Against the six calls of the model, on heads as they lie in the projection.
local function rope(size, batch, heads, length, width)
  local x = randn(batch, length, heads, width):transpose(1, 2)
  local cos, sin = randn(length, width), randn(length, width)
  compare('rope ' .. size, function() ours.rope(x, cos, sin) end, function()
    local left, right = unpack(x:chunk(2, -1))
    return x * cos + aten.cat({ -right, left }, -1) * sin
  end)
end

local function run()
  norms('tiny', 128, 64)
  norms('baby', 3072, 384)
  swiglu('small', 1536, 512)
  rope('small', 12, 6, 128, 32)
  gelu('tiny', randn(4, 32, 256))
  gelu('baby', randn(12, 256, 1536))
  attention('tiny', 4, 4, 32, 16)
  dropped_attention('tiny', 4, 4, 32, 16)
  attention('baby', 12, 6, 256, 64)
  dropped_attention('baby', 12, 6, 256, 64)
  cross_entropy('tiny', 128, 65)
  cross_entropy('baby', 3072, 65)
  cross_entropy('words', 256, 50257)
end

for threads = 1, 2 do
  door.set_num_threads(threads)
  print(('%d threads, %s'):format(threads, door.build_info().isa))
  T.no_grad(run)
end
