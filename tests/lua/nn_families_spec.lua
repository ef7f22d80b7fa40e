--- Layers of all families, forward and backward, against the values that PyTorch computed
--- (layer_values.lua).
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'
local sorted_keys = require('nnscaler.sorted').sorted_keys
local values = require 'tests.lua.layer_values'

-- The same inputs as in tests/equivalence/make_layer_values.py.
local function numbers(shape, f)
  local n, list = 1, {}
  for _, size in ipairs(shape) do n = n * size end
  for i = 0, n - 1 do list[i + 1] = f(i) end
  return T.tensor(list, { dtype = 'float64' }):reshape(shape)
end
local function wave(k, shape, scale)
  return numbers(shape, function(i) return (scale or 0.5) * math.sin(0.7 * i + 1.3 * k) end)
end
local function ints(high, ...)
  return numbers({ ... }, function(i) return (i * 7 + 3) % high end):to 'int64'
end
local function sign(...) return numbers({ ... }, function(i) return i % 3 == 0 and -1 or 1 end) end
local function prob(k, ...) return wave(k, { ... }):sigmoid() end
local function given(...) return T.tensor({ ... }, { dtype = 'int64' }) end
local function probability(k) return prob(k, 3, 4):detach():requires_grad_() end

local function eval(layer) return layer:eval() end
-- A layer that is called with more than tensors, or a function.
local function call(f, layer)
  local Call = nn.class 'Call'
  function Call:forward(...) return f(self.layer, ...) end
  local made = Call {}
  made.layer = layer
  return made
end
local function padded(layer)
  return call(function(inner, x) return inner(x, nil, { lengths = given(2, 4, 1) }) end, layer)
end
local P = nn.utils.parametrizations
local X1, X2, X3 = { 2, 4, 6 }, { 2, 4, 6, 5 }, { 2, 4, 4, 5, 6 }
local ROWS, D = { 3, 4 }, { dropout = 0, dim_feedforward = 12 }
local function with(options)
  for key, value in next, D do options[key] = value end
  return options
end

local cases = {
  { 'conv1d', nn.Conv1d(4, 6, 3, { stride = 2, padding = 1, groups = 2 }), { X1 } },
  { 'conv1d_same', nn.Conv1d(4, 6, 4, { padding = 'same' }), { X1 } },
  { 'conv2d_reflect', nn.Conv2d(4, 6, 3, { padding = { 1, 2 }, padding_mode = 'reflect' }),
    { X2 } },
  { 'conv2d_circular', nn.Conv2d(4, 6, 2, { padding = 'same', padding_mode = 'circular' }),
    { X2 } },
  { 'conv3d', nn.Conv3d(4, 2, 2, { dilation = { 1, 2, 1 } }), { X3 } },
  { 'conv_transpose1d', nn.ConvTranspose1d(4, 6, 3, { stride = 2, output_padding = 1, groups = 2 }),
    { X1 } },
  { 'conv_transpose2d', nn.ConvTranspose2d(4, 3, 3, { padding = 1, dilation = 2 }), { X2 } },
  { 'conv_transpose3d', nn.ConvTranspose3d(4, 2, 2, { stride = 2 }), { X3 } },
  { 'batch_norm1d', nn.BatchNorm1d(4), { { 3, 4 } } },
  { 'batch_norm1d_long', nn.BatchNorm1d(4, { affine = false, momentum = 0.3 }), { X1 } },
  { 'batch_norm3d', nn.BatchNorm3d(4, { track_running_stats = false }), { X3 } },
  { 'instance_norm1d', nn.InstanceNorm1d(4), { X1 } },
  { 'instance_norm2d', nn.InstanceNorm2d(4, { affine = true, track_running_stats = true }),
    { X2 } },
  { 'instance_norm2d_eval',
    eval(nn.InstanceNorm2d(4, { affine = true, track_running_stats = true })), { X2 } },
  { 'instance_norm3d', nn.InstanceNorm3d(4, { affine = true, eps = 1e-3 }), { X3 } },
  { 'group_norm', nn.GroupNorm(2, 4), { X2 } },
  { 'local_response_norm', nn.LocalResponseNorm(3, 0.1), { X2 } },
  { 'rnn', nn.RNN(3, 4, { num_layers = 2, nonlinearity = 'relu', bidirectional = true }),
    { { 5, 2, 3 } } },
  { 'gru', nn.GRU(3, 4, { batch_first = true }), { { 2, 5, 3 } } },
  { 'gru_state', nn.GRU(3, 4, { num_layers = 2, bias = false }), { { 5, 2, 3 }, { 2, 2, 4 } } },
  { 'lstm', nn.LSTM(3, 4, { num_layers = 2, bidirectional = true }), { { 5, 2, 3 } } },
  { 'lstm_projected', nn.LSTM(3, 4, { proj_size = 2 }), { { 5, 2, 3 } } },
  { 'lstm_unbatched', nn.LSTM(3, 4), { { 5, 3 } } },
  { 'rnn_lengths', padded(nn.RNN(3, 4)), { { 4, 3, 3 } } },
  { 'gru_lengths', padded(nn.GRU(3, 4, { num_layers = 2, bidirectional = true,
    batch_first = true })), { { 3, 4, 3 } } },
  { 'lstm_lengths', padded(nn.LSTM(3, 4, { num_layers = 2, bidirectional = true })),
    { { 4, 3, 3 } } },
  { 'lstm_lengths_projected', padded(nn.LSTM(3, 4, { proj_size = 2, batch_first = true })),
    { { 3, 4, 3 } } },
  { 'rnn_cell', nn.RNNCell(3, 4), { { 2, 3 }, { 2, 4 } } },
  { 'gru_cell', nn.GRUCell(3, 4), { { 2, 3 }, { 2, 4 } } },
  { 'lstm_cell', nn.LSTMCell(3, 4, { bias = false }), { { 2, 3 } } },
  { 'encoder_layer', nn.TransformerEncoderLayer(8, 2, D), { { 4, 2, 8 } } },
  { 'encoder_layer_masked', call(function(layer, x)
    return layer(x, { src_mask = T.ones { 4, 4 }:triu(1):gt(0),
      src_key_padding_mask = given(3, 4):unsqueeze(1):le(T.arange(4)) })
  end, nn.TransformerEncoderLayer(8, 2, with { activation = 'gelu', norm_first = true,
    batch_first = true })), { { 2, 4, 8 } } },
  { 'decoder_layer', call(function(layer, x, memory)
    return layer(x, memory, { tgt_is_causal = true })
  end, nn.TransformerDecoderLayer(8, 2, D)), { { 3, 2, 8 }, { 4, 2, 8 } } },
  { 'transformer', nn.Transformer(with { d_model = 8, nhead = 2, num_encoder_layers = 2,
    num_decoder_layers = 1, batch_first = true }), { { 2, 4, 8 }, { 2, 3, 8 } } },
  { 'avg_pool1d', nn.AvgPool1d(3, { stride = 2, padding = 1, count_include_pad = false }), { X1 } },
  { 'avg_pool2d', nn.AvgPool2d({ 3, 2 }, { stride = 2, padding = { 1, 1 }, ceil_mode = true,
    divisor_override = 4 }), { X2 } },
  { 'avg_pool3d', nn.AvgPool3d(2, { stride = 1 }), { X3 } },
  { 'max_pool1d', nn.MaxPool1d(3, { stride = 2, padding = 1, ceil_mode = true }), { X1 } },
  { 'max_pool3d', nn.MaxPool3d(2), { X3 } },
  { 'lp_pool1d', nn.LPPool1d(2, 3), { X1 } },
  { 'lp_pool2d', nn.LPPool2d(2, { 3, 2 }, { stride = 2 }), { X2 } },
  { 'adaptive_avg_pool1d', nn.AdaptiveAvgPool1d(4), { X1 } },
  { 'adaptive_avg_pool3d', nn.AdaptiveAvgPool3d { 2, 3, 1 }, { X3 } },
  { 'adaptive_max_pool1d', nn.AdaptiveMaxPool1d(4), { X1 } },
  { 'adaptive_max_pool2d', nn.AdaptiveMaxPool2d(3), { X2 } },
  { 'adaptive_max_pool3d', nn.AdaptiveMaxPool3d { 2, 3, 1 }, { X3 } },
  { 'constant_pad', nn.ConstantPad2d({ 1, 0, 2, 1 }, 0.3), { X2 } },
  { 'reflection_pad', nn.ReflectionPad1d { 2, 1 }, { X1 } },
  { 'replication_pad', nn.ReplicationPad3d(1), { X3 } },
  { 'circular_pad', nn.CircularPad2d { 1, 2, 0, 1 }, { X2 } },
  { 'pixel_shuffle', nn.PixelShuffle(2), { X2 } },
  { 'pixel_unshuffle', nn.PixelUnshuffle(2), { { 2, 3, 4, 6 } } },
  { 'channel_shuffle', nn.ChannelShuffle(2), { X2 } },
  { 'unfold', nn.Unfold({ 2, 3 }, { padding = 1, stride = 2 }), { X2 } },
  { 'fold', nn.Fold({ 5, 4 }, 2, { dilation = { 2, 1 } }), { { 2, 8, 9 } } },
  { 'unflatten', nn.Sequential(nn.Flatten(), nn.Unflatten(1, { 3, -1 })), { X1 } },
  { 'upsample_nearest', nn.Upsample { scale_factor = 1.6 }, { X1 } },
  { 'upsample_exact', nn.Upsample { size = { 7, 9 }, mode = 'nearest-exact' }, { X2 } },
  { 'upsample_linear', nn.Upsample { size = 9, mode = 'linear', align_corners = true }, { X1 } },
  { 'upsample_bilinear', nn.Upsample { scale_factor = { 1.5, 2 }, mode = 'bilinear' }, { X2 } },
  { 'upsample_bilinear_sizes', nn.Upsample { scale_factor = 1.3, mode = 'bilinear',
    recompute_scale_factor = true }, { X2 } },
  { 'upsample_bicubic', nn.Upsample { size = { 9, 7 }, mode = 'bicubic' }, { X2 } },
  { 'upsample_trilinear', nn.Upsample { scale_factor = 2, mode = 'trilinear' }, { X3 } },
  { 'upsample_area', call(function(_, x)
    return F.interpolate(x, { size = { 4, 3 }, mode = 'area' })
  end), { X2 } },
  { 'upsample_antialias', call(function(_, x)
    return F.interpolate(x, { size = { 3, 4 }, mode = 'bilinear', antialias = true })
  end), { X2 } },
  { 'bilinear', nn.Bilinear(3, 4, 2), { { 5, 3 }, { 5, 4 } } },
  { 'bag_mean', nn.EmbeddingBag(7, 3), { ints(7, 4, 3) } },
  { 'bag_max', nn.EmbeddingBag(7, 3, { mode = 'max', padding_idx = 2 }), { ints(7, 4, 3) } },
  { 'bag_sum', call(function(_, w)
    return F.embedding_bag(ints(7, 4, 3), wave(9, { 7, 3 }), nil,
      { mode = 'sum', per_sample_weights = w })
  end), { { 4, 3 } } },
  { 'bag_offsets', nn.EmbeddingBag(7, 3, { padding_idx = 2 }), { ints(7, 6), given(0, 2, 3) } },
  { 'prelu', nn.PReLU(4), { X1 } },
  { 'cosine_similarity', nn.CosineSimilarity(), { X1, X1 } },
  { 'pairwise_distance', nn.PairwiseDistance(3, nil, true), { ROWS, ROWS } },
  { 'cdist', call(function(_, a, b) return F.cdist(a, b) end), { { 3, 4 }, { 5, 4 } } },
  { 'grid_sample', call(function(_, x, theta)
    return F.grid_sample(x, F.affine_grid(theta, { 2, 4, 3, 3 }, true), { padding_mode = 'border' })
  end), { X2, { 2, 2, 3 } } },
  { 'weight_norm', P.weight_norm(nn.Linear(3, 4)), { { 2, 3 } } },
  { 'weight_norm_conv', P.weight_norm(nn.Conv1d(4, 6, 3), 'weight', 1), { X1 } },
  { 'spectral_norm', P.spectral_norm(nn.Linear(3, 4)), { { 2, 3 } } },
  { 'spectral_norm_conv',
    P.spectral_norm(nn.ConvTranspose1d(4, 6, 3), 'weight', { n_power_iterations = 2 }), { X1 } },
}

for _, entry in ipairs {
  { 'ReLU6' }, { 'LeakyReLU', 0.2 }, { 'ELU', 0.7 }, { 'SELU' }, { 'CELU', 0.7 }, { 'GLU', 1 },
  { 'Hardtanh', -0.2, 0.3 }, { 'Hardswish' }, { 'Hardsigmoid' }, { 'Hardshrink', 0.2 },
  { 'Softshrink', 0.1 }, { 'Tanhshrink' }, { 'Softplus', 2, 0.5 }, { 'Softsign' }, { 'LogSigmoid' },
  { 'Threshold', 0.1, 2 }, { 'Softmax', 1 }, { 'LogSoftmax', 2 }, { 'Softmin', 0 }, { 'Mish' },
  { 'Softmax2d' },
} do
  cases[#cases + 1] = { entry[1], nn[entry[1]](unpack(entry, 2)), { X2 } }
end

for _, entry in ipairs {
  { 'L1Loss', nil, { ROWS, ROWS } }, { 'SmoothL1Loss', { beta = 0.3 }, { ROWS, ROWS } },
  { 'HuberLoss', { delta = 0.3, reduction = 'sum' }, { ROWS, ROWS } },
  { 'NLLLoss', { ignore_index = 1 }, { { 5, 4 }, ints(4, 5) } },
  { 'CrossEntropyLoss', { weight = prob(8, 4), label_smoothing = 0.1 },
    { { 2, 4, 3 }, ints(4, 2, 3) } },
  { 'KLDivLoss', { reduction = 'batchmean' }, { ROWS, prob(31, 3, 4) } },
  { 'KLDivLoss', { log_target = true }, { ROWS, ROWS } },
  { 'BCELoss', { weight = prob(8, 4) }, { probability(30), prob(31, 3, 4) } },
  { 'BCEWithLogitsLoss', { pos_weight = prob(8, 4) }, { ROWS, prob(31, 3, 4) } },
  { 'PoissonNLLLoss', { full = true }, { ROWS, ints(5, 3, 4):to 'float64' } },
  { 'PoissonNLLLoss', { log_input = false }, { probability(30), ints(5, 3, 4):to 'float64' } },
  { 'GaussianNLLLoss', { full = true }, { ROWS, ROWS, prob(32, 3, 1) } },
  { 'MarginRankingLoss', { margin = 0.1 }, { ROWS, ROWS, sign(3, 4) } },
  { 'HingeEmbeddingLoss', { margin = 0.3 }, { ROWS, sign(3, 4) } },
  { 'CosineEmbeddingLoss', { margin = -0.4 }, { { 5, 4 }, { 5, 4 }, sign(5) } },
  { 'TripletMarginLoss', { swap = true, p = 3 }, { ROWS, ROWS, ROWS } },
  { 'TripletMarginWithDistanceLoss', { margin = 0.5 }, { ROWS, ROWS, ROWS } },
  { 'SoftMarginLoss', nil, { ROWS, sign(3, 4) } },
  { 'MultiMarginLoss', { p = 2, weight = prob(8, 4) }, { { 5, 4 }, ints(4, 5) } },
  { 'MultiLabelMarginLoss', nil,
    { ROWS, given(3, 0, -1, 1, 1, -1, 0, 2, 0, 1, 2, -1):view { 3, 4 } } },
  { 'MultiLabelSoftMarginLoss', { weight = prob(8, 4) }, { ROWS, ints(2, 3, 4):to 'float64' } },
  { 'CTCLoss', nil, { { 6, 2, 4 }, ints(3, 2, 2) + 1, given(6, 5), given(2, 1) } },
} do
  local name = entry[1]
  if cases[#cases][1] == name then name = name .. '_again' end
  cases[#cases + 1] = { name, nn[entry[1]](entry[2]), entry[3] }
end

local function digest(tensors)
  local sums = {}
  for i, k in ipairs { 50, 51 } do
    sums[i] = 0
    for j, x in ipairs(tensors) do
      x = x:detach():to 'float64'
      sums[i] = sums[i] + (x * wave(k + j - 1, x.shape, 1)):sum():item()
    end
  end
  return sums
end

local function near(expected, got, what)
  for i, value in ipairs(digest(got)) do
    assert.is_true(math.abs(value - expected[i]) <= 1e-12 * (1 + math.abs(expected[i])),
      ('%s: projection %d is %.17g; PyTorch has %.17g'):format(what, i, value, expected[i]))
  end
end

local function flat(list, into)
  for _, y in ipairs(list) do
    if T.is_tensor(y) then into[#into + 1] = y else flat(y, into) end
  end
  return into
end

local function run(name, layer, specs)
  local expected, inputs, names = assert(values[name], 'no values'), {}, {}
  layer:to('float64'):materialize(0)
  local params, buffers = layer:named_parameters(), layer:named_buffers()
  local function note(entry)
    names[#names + 1] = (entry.name:gsub('^layer%.', ''))
  end
  for k, entry in ipairs(params) do
    local shape = entry.param.shape
    entry.param.data = wave(k - 1, shape) + (#(entry.file_shape or shape) == 1 and 1 or 0)
    note(entry)
  end
  for k, entry in ipairs(buffers) do
    note(entry)
    if entry.name:match '%._[uv]$' then
      local x = wave(19 + k, entry.buffer.shape)
      entry.buffer.data = x / x:norm()
    end
  end
  for i, spec in ipairs(specs) do
    inputs[i] = T.is_tensor(spec) and spec or wave(29 + i, spec):requires_grad_()
  end
  local outputs = flat({ layer(unpack(inputs)) }, {})
  near(expected.output, outputs, 'results')
  local total = 0
  for i, y in ipairs(outputs) do total = total + (y * wave(39 + i, y.shape, 1)):sum() end
  total:backward()
  local gradients, held = {}, {}
  for _, x in ipairs(inputs) do gradients[#gradients + 1] = x.requires_grad and x.grad or nil end
  for _, entry in ipairs(params) do gradients[#gradients + 1] = entry.param.grad end
  near(expected.gradients, gradients, 'gradients')
  for i, entry in ipairs(buffers) do held[i] = entry.buffer.data end
  near(expected.buffers or { 0, 0 }, held, 'buffers')
  assert.equal(expected.names or '', table.concat(names, ' '))
end

describe('a layer of a family computes what PyTorch computes:', function()
  local seen = {}
  for _, case in ipairs(cases) do
    it(case[1], function() run(unpack(case)) end)
    seen[case[1]] = true
  end
  it('all of them', function() assert.same(sorted_keys(values), sorted_keys(seen)) end)
end)
