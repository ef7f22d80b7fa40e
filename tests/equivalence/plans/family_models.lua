--- One model of each family of layers, unlisted models of the plan matrix.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local fft = require 'nnscaler.fft'
local models = require 'tests.equivalence.plans.models'
local nn = require 'nnscaler.nn'

local M = { names = {} }

local function add(name, init, forward, sample)
  local Net = nn.class 'Net'
  Net.init, Net.forward = init, forward
  models['family ' .. name] = { group = 'family', make = function() return Net() end,
    sample = sample }
  M.names[#M.names + 1] = name
end

local function randn(g, ...) return T.randn({ ... }, { generator = g, dtype = 'float64' }) end
local function integers(g, low, high, ...)
  return T.randint(low, high, { ... }, { generator = g })
end
local P = nn.utils.parametrizations

add('convolutions', function(self)
  self.conv, self.norm = nn.Conv1d(2, 4, 3, { padding = 1 }), nn.BatchNorm1d(4)
  self.pool, self.up = nn.MaxPool1d(2), nn.ConvTranspose1d(4, 2, 4, { stride = 2, padding = 1 })
  self.wide = nn.Conv1d(2, 4, 3, { padding = 'same', padding_mode = 'circular', groups = 2 })
end, function(self, s)
  local y = self.up(self.pool(F.relu(self.norm(self.conv(s.x)))))
  return F.adaptive_max_pool1d(self.wide(y), 4):square():mean()
end, function(g) return { x = randn(g, 4, 2, 8) } end)

add('volumes', function(self)
  self.conv, self.group = nn.Conv3d(2, 4, 2), nn.GroupNorm(2, 4)
  self.instance = nn.InstanceNorm3d(4, { affine = true, track_running_stats = true })
  self.up = nn.Upsample { scale_factor = 2, mode = 'trilinear' }
end, function(self, s)
  -- Without the gelu norms would leave next to nothing of the gradient of the bias.
  local y = self.instance(self.up(self.group(F.gelu(self.conv(s.x)))))
  return F.avg_pool3d(F.max_pool3d(y, 2), 2):square():mean()
end, function(g) return { x = randn(g, 4, 2, 3, 4, 3) } end)

add('images', function(self)
  self.conv = nn.Conv2d(1, 4, 3, { padding = 1, padding_mode = 'reflect' })
  self.drop, self.norm = nn.Dropout2d(0.3), nn.LocalResponseNorm(3, 0.1)
end, function(self, s)
  local y = F.pixel_shuffle(self.norm(self.drop(self.conv(s.x))), 2)
  y = F.interpolate(y, { size = { 6, 4 }, mode = 'bilinear' })
  y = F.fold(F.unfold(y, 2, { stride = 2 }), { 6, 4 }, 2, { stride = 2 })
  local turned = F.grid_sample(y, F.affine_grid(s.theta, { 4, 1, 3, 3 }))
  return fft.rfft2(y):abs():mean() + turned:square():mean()
end, function(g) return { x = randn(g, 4, 1, 4, 4), theta = randn(g, 4, 2, 3) } end)

add('recurrent', function(self)
  self.lstm = nn.LSTM(3, 4, { num_layers = 2, bidirectional = true, dropout = 0.2 })
  self.gru, self.rnn = nn.GRU(8, 4, { batch_first = true }), nn.RNN(4, 2)
  self.cell = nn.LSTMCell(2, 2)
end, function(self, s)
  local y, state = self.lstm(s.x, nil, { lengths = s.lengths })
  local z, last = self.gru(y:transpose(0, 1))
  local r = self.rnn(z:transpose(0, 1))
  return self.cell(r:select(0, 0)):square():mean() + r:square():mean() + last:square():mean()
    + state[2]:square():mean()
end, function(g) return { x = randn(g, 5, 4, 3), lengths = integers(g, 1, 6, 4) } end)

add('transformers', function(self)
  self.model = nn.Transformer { d_model = 8, nhead = 2, num_encoder_layers = 1,
    num_decoder_layers = 2, dim_feedforward = 12, dropout = 0.1, batch_first = true }
end, function(self, s)
  local y = self.model(s.x, s.y, { tgt_is_causal = true, src_key_padding_mask = s.padding,
    memory_key_padding_mask = s.padding })
  return y:pow(3):mean()
end, function(g)
  local ends = integers(g, 2, 6, 4):unsqueeze(1)
  return { x = randn(g, 4, 5, 8), y = randn(g, 4, 3, 8), padding = T.arange(5):ge(ends) }
end)

add('tables', function(self)
  self.bag = nn.EmbeddingBag(7, 4, { padding_idx = 1 })
  self.most = nn.EmbeddingBag(7, 4, { mode = 'max' })
  self.normed = P.weight_norm(nn.Linear(4, 4))
  self.bilinear = nn.Bilinear(4, 4, 2)
  self.scales = nn.ParameterList { nn.Parameter { shape = { 2 }, init = nn.init.normal() } }
end, function(self, s)
  local y = self.normed(self.bag(s.ids))
  return (self.bilinear(y, self.most(s.ids)) * self.scales[1]):square():mean()
end, function(g) return { ids = integers(g, 0, 7, 4, 3) } end)

-- Its vectors change with every micro-batch: scale units would not see each other's.
add('spectral', function(self)
  self.conv = P.spectral_norm(nn.ConvTranspose1d(2, 3, 2), 'weight', { n_power_iterations = 2 })
end, function(self, s) return self.conv(s.x):square():mean() end,
  function(g) return { x = randn(g, 4, 2, 5) } end)

add('activations', function(self)
  self.fc, self.prelu, self.rrelu = nn.Linear(4, 6), nn.PReLU(6), nn.RReLU()
  self.drop, self.feature = nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.3)
end, function(self, s)
  local x, y = self.fc(s.x), 0
  for _, name in ipairs { 'relu6', 'selu', 'celu', 'hardtanh', 'hardsigmoid', 'hardswish',
    'softsign', 'tanhshrink', 'logsigmoid', 'mish', 'softplus', 'leaky_relu' } do
    y = y + F[name](x)
  end
  y = self.drop(self.rrelu(self.prelu(y / 12)))
  return self.feature(F.gumbel_softmax(y):unsqueeze(2)):square():mean()
end, function(g) return { x = randn(g, 4, 4) } end)

add('losses', function(self) self.fc = nn.Linear(4, 6) end, function(self, s)
  local x = self.fc(s.x)
  local a, b, c = x, x:roll(1, 1):tanh(), x:flip { 1 } * 0.5
  local loss = F.huber_loss(a, b) + F.smooth_l1_loss(a, c) + F.kl_div(F.log_softmax(a, 1),
    F.softmax(b, 1), { reduction = 'batchmean' }) + F.triplet_margin_loss(a, b, c)
    + F.cosine_embedding_loss(a, c, s.sign) + F.margin_ranking_loss(a, b, s.sign:unsqueeze(1))
    + F.gaussian_nll_loss(a, c, b:square() + 0.5) + F.nll_loss(F.log_softmax(a, 1), s.labels)
    + F.multi_margin_loss(a, s.labels) + F.multilabel_soft_margin_loss(a, s.sign:unsqueeze(1):gt(0)
    :to(a.dtype):expand { 4, 6 }) + F.cosine_similarity(a, b):mean() + F.cdist(a, b):mean()
  local steps = F.log_softmax(a:view { 4, 3, 2 }:transpose(0, 1), 2)
  return loss + F.ctc_loss(steps, s.one, s.three, s.one:squeeze(1))
end, function(g)
  local ones = T.ones({ 4, 1 }, { dtype = 'int64' })
  return { x = randn(g, 4, 4), sign = integers(g, 0, 2, 4):to 'float64' * 2 - 1,
    labels = integers(g, 0, 6, 4), one = ones, three = ones:squeeze(1) * 3 }
end)

return M
