--- Every layer, forward and backward, against the values that PyTorch computed (nn_values.lua).
local T = require 'nnscaler.tensor'
local GPT = require 'nnscaler.models.gpt'
local nn = require 'nnscaler.nn'
local values = require 'tests.lua.nn_values'

-- The same waves as in tests/equivalence/make_nn_values.py.
local function wave(k, shape, scale)
  local n, list = 1, {}
  for _, size in ipairs(shape) do n = n * size end
  for i = 0, n - 1 do list[i + 1] = (scale or 0.5) * math.sin(0.7 * i + 1.3 * k) end
  return T.tensor(list, { dtype = 'float64' }):reshape(shape)
end

local function labels(n, classes, ignored)
  local list = {}
  for i = 0, n - 1 do list[i + 1] = (i * 7 + 3) % classes end
  for _, i in ipairs(ignored or {}) do list[i + 1] = -100 end
  return T.tensor(list, { dtype = 'int64' })
end

local function probability(k) return wave(k, { 3, 4 }):sigmoid() end

local function check(expected, got, what)
  got = got:detach():to 'float64'
  for i, k in ipairs { 50, 51 } do
    local value = (got * wave(k, got.shape, 1)):sum():item()
    assert.is_true(math.abs(value - expected[i]) <= 1e-12 * (1 + math.abs(expected[i])),
      ('%s: projection %d is %.17g; PyTorch has %.17g'):format(what, i, value, expected[i]))
  end
end

local evaluation = function(layer) return layer:eval() end
local function gpt(heads, bias)
  return GPT { vocab = 11, layers = 2, heads = heads, width = 8, block = 6, bias = bias }
end

-- name, layer, inputs (a list of sizes is a wave), names of ours that differ
local cases = {
  { 'linear', nn.Linear(3, 4), { { 2, 3 } } },
  { 'linear_without_bias', nn.Linear(3, 4, { bias = false }), { { 2, 5, 3 } } },
  { 'embedding', nn.Embedding(7, 3), { labels(6, 7) } },
  { 'layer_norm', nn.LayerNorm(4), { { 3, 4 } } },
  { 'layer_norm_2d', nn.LayerNorm({ 3, 4 }, { eps = 1e-3, bias = false }), { { 2, 3, 4 } } },
  { 'rms_norm', nn.RMSNorm(4, { eps = 1e-5 }), { { 3, 4 } } },
  { 'rms_norm_default_eps', nn.RMSNorm(4, { elementwise_affine = false }), { { 3, 4 } } },
  { 'batch_norm', nn.BatchNorm2d(3), { { 2, 3, 4, 5 } } },
  { 'batch_norm_eval', evaluation(nn.BatchNorm2d(3)), { { 2, 3, 4, 5 } } },
  { 'gelu', nn.GELU(), { { 3, 4 } } },
  { 'gelu_tanh', nn.GELU { approximate = 'tanh' }, { { 3, 4 } } },
  { 'relu', nn.ReLU(), { { 3, 4 } } },
  { 'silu', nn.SiLU(), { { 3, 4 } } },
  { 'tanh', nn.Tanh(), { { 3, 4 } } },
  { 'sigmoid', nn.Sigmoid(), { { 3, 4 } } },
  { 'conv', nn.Conv2d(2, 4, 3), { { 2, 2, 5, 6 } } },
  { 'conv_options', nn.Conv2d(4, 6, { 3, 2 }, { stride = { 2, 1 }, padding = { 1, 2 },
    dilation = { 1, 2 }, groups = 2, bias = false }), { { 2, 4, 7, 6 } } },
  { 'max_pool', nn.MaxPool2d(3, { stride = 2, padding = 1 }), { { 2, 3, 7, 6 } } },
  { 'adaptive_pool', nn.AdaptiveAvgPool2d { 2, 3 }, { { 2, 3, 7, 8 } } },
  { 'attention', nn.MultiHeadAttention(6, 2), { { 2, 4, 6 } } },
  { 'attention_causal', nn.MultiHeadAttention(6, 2), { { 2, 4, 6 } }, { causal = true } },
  { 'attention_memory', nn.MultiHeadAttention(6, 2), { { 2, 4, 6 }, { 2, 3, 6 } } },
  { 'cross_entropy', nn.CrossEntropy(), { { 5, 4 }, labels(5, 4) } },
  { 'cross_entropy_options', nn.CrossEntropy { label_smoothing = 0.1 },
    { { 5, 4 }, labels(5, 4, { 1, 3 }) } },
  { 'bce', nn.BCELoss(), { probability(30):requires_grad_(), probability(31) } },
  { 'bce_with_logits', nn.BCEWithLogitsLoss(), { { 3, 4 }, probability(31) } },
  { 'mse', nn.MSELoss(), { { 3, 4 }, { 3, 4 } } },
  { 'gpt', gpt(2, true), { labels(12, 11):view { 2, 6 }, labels(12, 9, { 0, 7 }):view { 2, 6 } } },
  { 'gpt_without_bias', gpt(4, false),
    { labels(8, 11):view { 2, 4 }, labels(8, 9):view { 2, 4 } } },
}

local function run(name, layer, specs, options)
  local expected, inputs = values[name], {}
  layer:to('float64'):materialize(0)
  for k, entry in ipairs(layer:named_parameters()) do
    local shape = entry.param.shape
    entry.param.data = wave(k - 1, shape) + (#(entry.file_shape or shape) == 1 and 1 or 0)
  end
  for i, spec in ipairs(specs) do
    inputs[i] = type(spec) == 'userdata' and spec or wave(29 + i, spec):requires_grad_()
  end
  local output = layer(inputs[1], inputs[2], options)
  check(expected.output, output, 'output')
  if output:dim() == 0 then output:backward() else output:backward(wave(40, output.shape, 1)) end
  for i, digest in ipairs(expected.inputs) do
    if digest then check(digest, inputs[i].grad, 'gradient of input ' .. i) end
  end
  for _, kind in ipairs { 'parameters', 'buffers' } do
    local list = kind == 'buffers' and layer:named_buffers() or layer:named_parameters()
    assert.equal(#(expected[kind] or {}), #list)
    for i, entry in ipairs(list) do
      local digest = expected[kind][i]
      assert.equal(digest[1], entry.name)
      check({ digest[2], digest[3] }, entry.buffer and entry.buffer.data or entry.param.grad,
        entry.name)
    end
  end
end

describe('a layer computes what PyTorch computes:', function()
  local seen = 0
  for _, case in ipairs(cases) do
    it(case[1], function() run(unpack(case)) end)
    seen = seen + 1
  end
  it('all of them', function()
    local count = 0
    for _ in require('nnscaler.sorted').sorted_pairs(values) do count = count + 1 end
    assert.equal(count, seen)
  end)
end)

describe('linear layers as one', function()
  local layer = nn.FusedLinear(4, 6, 3):to('float64'):materialize(1)

  it('give what each of them gives', function()
    local x = wave(1, { 2, 5, 4 })
    local results = { layer(x) }
    assert.equal(3, #results)
    for i, y in ipairs(results) do
      local one = nn.Linear(4, 6):to('float64'):materialize(1)
      one:load_state_dict { weight = layer.weight.data[i - 1], bias = layer.bias.data[i - 1] }
      assert.is_true((y - one(x)):abs():amax():item() <= 1e-15)
    end
  end)

  it('load from files that hold them one below the other', function()
    local rows, bias = wave(2, { 18, 4 }), wave(3, { 18 })
    layer:load_state_dict { weight = rows, bias = bias }
    assert.is_true(layer.weight.data:equal(rows:view { 3, 6, 4 }))
    assert.is_true(layer.bias.data:equal(bias:view { 3, 6 }))
    assert.same({ 18, 4 }, layer:state_dict()[1].file_shape)
  end)
end)

describe('losses', function()
  it('of labels that are all ignored are zero, and so are the gradients', function()
    local logits = wave(1, { 3, 4 }):requires_grad_()
    local loss, count = nn.CrossEntropy()(logits, labels(3, 4, { 0, 1, 2 }))
    loss:backward()
    assert.equal(0, count:item())
    assert.equal(0, loss:item())
    assert.equal(0, logits.grad:abs():sum():item())
  end)

  it('count labels with another ignore_index', function()
    local _, count = nn.CrossEntropy { ignore_index = 2 }(wave(1, { 5, 4 }), labels(5, 4))
    assert.equal(4, count:item())
  end)
end)

describe('first values', function()
  local function range(tensor)
    return tensor.data:min():item(), tensor.data:max():item(), tensor.data:std():item()
  end

  it('of linear layers are uniform within ±1/√inputs', function()
    local layer = nn.Linear(100, 400):materialize(1)
    local low, high, std = range(layer.weight)
    assert.is_true(low >= -0.1 and low < -0.0999 and high <= 0.1 and high > 0.0999)
    assert.is_true(math.abs(std - 0.2 / math.sqrt(12)) < 5e-4)
    low, high = range(layer.bias)
    assert.is_true(low >= -0.1 and high <= 0.1 and high - low > 0.19)
  end)

  it('of convolutions count the inputs of one output', function()
    local low, high = range(nn.Conv2d(8, 64, 5, { groups = 2 }):materialize(1).weight)
    assert.is_true(low >= -0.1 and low < -0.099 and high <= 0.1 and high > 0.099)
  end)

  it('of embeddings are standard normal', function()
    local _, _, std = range(nn.Embedding(300, 100):materialize(1).weight)
    assert.is_true(math.abs(std - 1) < 0.02)
  end)

  it('of a GPT are as in nanoGPT', function()
    local model = GPT { vocab = 65, layers = 8, heads = 4, width = 64, block = 32, bias = true }
    model:materialize(1)
    for _, entry in ipairs(model:named_parameters()) do
      local data, name = entry.param.data, entry.name
      if name:match 'ln_[12f]%.weight$' then
        assert.equal(1, data:min():item())
      elseif name:match 'bias$' then
        assert.equal(0, data:abs():max():item())
      else
        local expected = name:match 'c_proj' and 0.02 / 4 or 0.02
        assert.is_true(math.abs(data:std():item() / expected - 1) < 0.06, name)
      end
    end
  end)

  it('depend on seed and name only, in float32 the rounded float64', function()
    local function weight(seed, dtype)
      local model = nn.Sequential(nn.ReLU(), nn.Linear(3, 5))
      return model:to(dtype):materialize(seed)[2].weight.data
    end
    assert.is_true(weight(1, 'float32'):equal(weight(1, 'float32')))
    assert.is_false(weight(1, 'float32'):equal(weight(2, 'float32')))
    assert.is_true(weight(1, 'float32'):equal(weight(1, 'float64'):to 'float32'))
    assert.is_false(weight(1, 'float32'):equal(nn.Linear(3, 5):materialize(1).weight.data))
  end)

  it('may be orthogonal, the identity or cut', function()
    local function draw(shape, init)
      local module = nn.Module.class 'Holder'()
      module.w = nn.Parameter { shape = shape, dtype = 'float64', init = init }
      return module:materialize(5).w.data
    end
    for _, shape in ipairs { { 4, 6 }, { 6, 4 }, { 4, 3, 2 } } do
      local w = draw(shape, nn.init.orthogonal(2)):flatten(1)
      local gram = w.shape[1] <= w.shape[2] and w:matmul(w:t()) or w:t():matmul(w)
      local n = gram.shape[1]
      assert.is_true((gram - T.eye(n, { dtype = 'float64' }) * 4):abs():max():item() < 1e-12)
    end
    assert.is_true(draw({ 3, 3 }, nn.init.eye()):equal(T.eye(3, { dtype = 'float64' })))
    local cut = draw({ 5000 }, nn.init.trunc_normal(0, 1, 1.5))
    assert.is_true(cut:abs():max():item() <= 1.5 and cut:abs():max():item() > 1.49)
    -- variance of a normal cut at ±1.5: 1 - 2·1.5·φ(1.5) / (Φ(1.5) - Φ(-1.5))
    assert.is_true(math.abs(cut:var():item() - 0.5515) < 0.03)
  end)
end)
