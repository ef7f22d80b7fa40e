--- What layers draw: the elements that fall, noisy activations, and first values.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'

local generator = T.generator(3)
local function randn(...) return T.randn({ ... }, { dtype = 'float64', generator = generator }) end

-- The result of a function inside of a model, where noise may be drawn.
local function inside(f, ...)
  local Net = nn.class 'Net'
  function Net:forward(...) return f(...) end
  return Net {}(...)
end

local function range(x) return x:min():item(), x:max():item() end

describe('dropout', function()
  it('of channels drops each as a whole', function()
    for axes = 1, 3 do
      local shape = { 40, 50 }
      for i = 1, axes do shape[i + 2] = 3 end
      local y = nn[('Dropout%dd'):format(axes)](0.3)(T.ones(shape)):flatten(2)
      local low, high = y:amin { 2 }, y:amax { 2 }
      assert.is_true(low:equal(high))
      local kept = low:gt(0)
      assert.is_true(math.abs(kept:to('float64'):mean():item() - 0.7) < 0.03)
      assert.is_true((low - kept:to 'float32' / 0.7):abs():max():item() < 1e-6)
    end
  end)

  it('for SELU keeps mean and variance', function()
    local x = randn(300, 400)
    for _, layer in ipairs { nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2) } do
      local y = layer(x)
      assert.is_true(math.abs(y:mean():item()) < 0.02)
      assert.is_true(math.abs(y:var():item() - 1) < 0.02)
      assert.is_true(layer:eval()(x):equal(x))
    end
  end)

  it('of whole channels for SELU gives fallen ones one value', function()
    local y = nn.FeatureAlphaDropout(0.5)(randn(20, 30, 7))
    local fallen = y:amax({ 2 }):eq(y:amin { 2 })
    assert.is_true(math.abs(fallen:to('float64'):mean():item() - 0.5) < 0.08)
  end)

  it('with probability 0 or 1 draws nothing', function()
    local x = randn(2, 3, 4)
    assert.is_true(F.alpha_dropout(x, 0, true):equal(x))
    assert.equal(0, F.alpha_dropout(x, 1, true):abs():max():item())
    assert.equal(0, F.feature_alpha_dropout(x, 1, true):abs():max():item())
    assert.is_true(F.dropout2d(x, 0):equal(x))
  end)

  it('between recurrent layers acts in training alone', function()
    local layer = nn.LSTM(3, 4, { num_layers = 2, dropout = 0.5 }):to('float64'):materialize(1)
    local plain = nn.LSTM(3, 4, { num_layers = 2 }):to('float64'):materialize(1)
    local x = randn(5, 2, 3)
    assert.is_false((layer(x)):equal((plain(x))))
    assert.is_true((layer:eval()(x) - plain(x)):abs():max():item() < 1e-14)
  end)
end)

describe('noise', function()
  it('of a leaky rectifier lies between its bounds', function()
    local low, high = range(nn.RReLU(0.1, 0.3)(-T.ones { 1000 }))
    assert.is_true(low >= -0.3 and low < -0.29 and high <= -0.1 and high > -0.11)
    assert.equal(5, nn.RReLU()(T.full({ 1 }, 5)):item())
  end)

  it('of Gumbel picks classes by their probabilities', function()
    local logits = T.tensor({ 0, 1, 2 }, { dtype = 'float64' }):expand { 20000, 3 }
    local y = inside(F.gumbel_softmax, logits, { hard = true })
    assert.is_true((y:sum { 1 } - 1):abs():max():item() < 1e-12)
    local share = y:mean { 0 } - F.softmax(logits[0], 0)
    assert.is_true(share:abs():max():item() < 0.015)
    local soft = inside(F.gumbel_softmax, logits, { tau = 0.5 })
    assert.is_true((soft:sum { 1 } - 1):abs():max():item() < 1e-12)
  end)
end)

describe('first values', function()
  it('of recurrent layers and cells are uniform within ±1/√hidden_size', function()
    for _, layer in ipairs { nn.GRU(50, 100), nn.LSTM(50, 100, { proj_size = 20 }),
      nn.RNNCell(50, 100) } do
      for _, entry in ipairs(layer:materialize(1):named_parameters()) do
        local low, high = range(entry.param.data)
        assert.is_true(low >= -0.1 and low < -0.09 and high <= 0.1 and high > 0.09, entry.name)
      end
    end
  end)

  it('of transposed convolutions count the outputs of a group', function()
    local layer = nn.ConvTranspose2d(64, 8, 5, { groups = 2 }):materialize(1)
    for _, parameter in ipairs { layer.weight, layer.bias } do
      local low, high = range(parameter.data)
      assert.is_true(low >= -0.1 and low < -0.05 and high <= 0.1 and high > 0.05)
    end
  end)

  it("of transformers are Glorot's", function()
    local model = nn.Transformer { d_model = 32, nhead = 2, num_encoder_layers = 1,
      num_decoder_layers = 1, dim_feedforward = 64 }:materialize(1)
    local low, high = range(model.encoder.layers[1].linear1.weight.data)
    local bound = math.sqrt(6 / 96)
    assert.is_true(low >= -bound and low < -0.98 * bound and high <= bound)
    low, high = range(model.decoder.layers[1].multihead_attn.in_proj_weight.data)
    bound = math.sqrt(6 / 128)
    assert.is_true(low >= -bound and high <= bound and high > 0.98 * bound)
  end)

  it('of a normed weight are about those of the weight', function()
    local norm = nn.utils.parametrizations.weight_norm
    local fresh = norm(nn.Linear(500, 6)):materialize(1)
    local held = fresh.parametrizations.weight
    local size = held.original1.data:norm(2, { 1 }, true)
    assert.is_true((held.original0.data / size - 1):abs():max():item() < 0.06)
    local layer = nn.Linear(5, 6):to('float64'):materialize(1)
    local x = randn(3, 5)
    local before = layer(x)
    assert.is_true((norm(layer)(x) - before):abs():max():item() < 1e-15)
  end)
end)

describe('parameters in lists and under names', function()
  it('are those of the model', function()
    local Net = nn.class 'Net'
    function Net:init()
      local function one(n) return nn.Parameter { shape = { n }, init = nn.init.ones() } end
      self.list = nn.ParameterList { one(1), one(2) }
      self.list:append(one(3))
      self.dict = nn.ParameterDict { b = one(5), a = one(4) }
      self.dict.c = one(6)
    end
    local names = {}
    for i, entry in ipairs(Net {}:named_parameters()) do
      names[i] = entry.name .. ' ' .. entry.param.shape[1]
    end
    assert.same({ 'list.0 1', 'list.1 2', 'list.2 3', 'dict.a 4', 'dict.b 5', 'dict.c 6' }, names)
  end)
end)
