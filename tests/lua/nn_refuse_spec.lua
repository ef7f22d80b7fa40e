--- What layers and functions refuse, and in which words.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local message = require 'tests.lua.support.message'
local nn = require 'nnscaler.nn'

local function says(text, f, ...)
  local said = message(f, ...)
  assert(said:find(text, 1, true), ('%s\nexpected: %s'):format(said, text))
end

-- { what, message, function, arguments … }
local function check(title, list)
  describe(title, function()
    for _, case in ipairs(list) do
      it(case[1], function() says(unpack(case, 2, table.maxn(case))) end)
    end
  end)
end

local function zeros(...) return T.zeros { ... } end
local function call(layer, ...)
  local inputs, n = { ... }, select('#', ...)
  return function() return layer:materialize(1)(unpack(inputs, 1, n)) end
end
local P = nn.utils.parametrizations

check('constructors refuse', {
  { 'channels that groups do not divide',
    '[nn.Conv1d] 2 groups do not divide 3 input and 4 output channels', nn.Conv1d, 3, 4, 1,
    { groups = 2 } },
  { 'channels of transposed convolutions',
    '[nn.ConvTranspose2d] 2 groups do not divide 4 input and 3 output channels',
    nn.ConvTranspose2d, 4, 3, 1, { groups = 2 } },
  { 'a kernel of other axes', '[nn.Conv3d] kernel_size has 2 sizes; expected 3, or one number',
    nn.Conv3d, 1, 1, { 1, 1 } },
  { 'a kernel of several sizes for sequences', '[nn.Conv1d] kernel_size has 2 sizes; expected 1',
    nn.Conv1d, 1, 1, { 1, 1 } },
  { 'padding that no stride allows',
    "[nn.Conv2d] padding = 'same' with stride 2; expected stride 1", nn.Conv2d, 1, 1, 3,
    { padding = 'same', stride = 2 } },
  { 'padding of another name', "[nn.Conv2d] padding = 'full'; expected same, valid", nn.Conv2d, 1,
    1, 3, { padding = 'full' } },
  { 'a mode of padding', "[nn.Conv1d] padding_mode = 'mirror'; expected zeros, reflect, replicate, "
    .. 'circular', nn.Conv1d, 1, 1, 3, { padding_mode = 'mirror' } },
  { 'an output padding that is no less than the stride',
    '[nn.ConvTranspose1d] output_padding = 2; expected less than stride or dilation',
    nn.ConvTranspose1d, 1, 1, 3, { stride = 2, output_padding = 2 } },
  { 'padding of half a window',
    '[nn.MaxPool1d] padding = 2; expected at most half of kernel_size 3', nn.MaxPool1d, 3,
    { padding = 2 } },
  { 'a divisor of 0', '[nn.AvgPool2d] divisor_override = 0; expected an integer ≥ 1', nn.AvgPool2d,
    2, { divisor_override = 0 } },
  { 'too few sides', '[nn.ZeroPad2d] padding has 2 sizes; expected 4, or one number', nn.ZeroPad2d,
    { 1, 1 } },
  { 'half an element of padding', '[nn.ConstantPad1d] padding = 0.5; expected an integer',
    nn.ConstantPad1d, 0.5, 1 },
  { 'no value', '[nn.ConstantPad1d] value = nil; expected a number', nn.ConstantPad1d, 1 },
  { 'a negative eps', '[nn.BatchNorm1d] eps = -1; expected a number ≥ 0', nn.BatchNorm1d, 3,
    { eps = -1 } },
  { 'groups of channels', '[nn.GroupNorm] 3 groups do not divide 4 channels', nn.GroupNorm, 3, 4 },
  { 'no list of sizes', '[nn.Unflatten] unflattened_size is no list of sizes', nn.Unflatten, 1, 2 },
  { 'neither size nor factor', '[nn.Upsample] expected either size or scale_factor', nn.Upsample },
  { 'a module among parameters',
    '[nn.ParameterList] entry 1 is a module; expected a parameter', nn.ParameterList,
    { nn.Identity() } },
  { 'a number among parameters', "[nn.ParameterDict] 'a' is a number; expected a parameter",
    nn.ParameterDict, { a = 1 } },
  { 'a row that the table has not', '[nn.Embedding] padding_idx = 3; the table has 3 rows',
    nn.Embedding, 3, 2, { padding_idx = 3 } },
  { 'a mode of bags', "[nn.EmbeddingBag] mode = 'min'; expected sum, mean, max", nn.EmbeddingBag, 3,
    2, { mode = 'min' } },
  { 'a reduction', "[nn.L1Loss] reduction = 'batchmean'; expected none, mean, sum", nn.L1Loss,
    { reduction = 'batchmean' } },
  { 'a margin that is a text', '[nn.TripletMarginLoss] margin = far; expected a number',
    nn.TripletMarginLoss, { margin = 'far' } },
  { 'bounds the wrong way round', '[nn.RReLU] upper = 0.1; expected a number ≥ 0.2', nn.RReLU, 0.2,
    0.1 },
  { 'no threshold', '[nn.Threshold] threshold = nil; expected a number', nn.Threshold },
  { 'dropout between no layers', '[nn.LSTM] dropout with one layer; expected 0, since it lies '
    .. 'between layers', nn.LSTM, 3, 4, { dropout = 0.1 } },
  { 'a projection that is no smaller', '[nn.LSTM] proj_size = 4; expected less than hidden_size 4',
    nn.LSTM, 3, 4, { proj_size = 4 } },
  { 'another nonlinearity', "[nn.RNN] nonlinearity = 'gelu'; expected tanh, relu", nn.RNN, 3, 4,
    { nonlinearity = 'gelu' } },
  { 'a projection of a GRU', "[nn.GRU] unknown option 'proj_size'", nn.GRU, 3, 4,
    { proj_size = 2 } },
  { 'heads', '[nn.TransformerEncoderLayer] 3 heads do not divide d_model 8',
    nn.TransformerEncoderLayer, 8, 3 },
  { 'an activation', "[nn.TransformerDecoderLayer] activation = 'silu'; expected relu, gelu",
    nn.TransformerDecoderLayer, 8, 2, { activation = 'silu' } },
  { 'layers of another kind',
    '[nn.TransformerEncoder] its layer is a TransformerDecoderLayer; expected a '
    .. 'TransformerEncoderLayer', nn.TransformerEncoder, nn.TransformerDecoderLayer(8, 2), 2 },
  { 'a parametrisation of no module', '[nn.utils.weight_norm] a number; expected a module',
    P.weight_norm, 3 },
  { 'a parametrisation of no parameter',
    "[nn.utils.spectral_norm] there is no parameter 'w' of a Linear", P.spectral_norm,
    nn.Linear(2, 3), 'w' },
  { 'a second parametrisation',
    "[nn.utils.spectral_norm] a second parametrisation of 'weight' of a Linear", P.spectral_norm,
    P.weight_norm(nn.Linear(2, 3)) },
  { 'a dimension that the weight has not', '[nn.utils.weight_norm] dim = 2; the parameter has 2 '
    .. 'dimensions', P.weight_norm, nn.Linear(2, 3), 'weight', 2 },
  { 'the spectrum of a vector', "[nn.utils.spectral_norm] parameter 'bias' has 1 dimension; "
    .. 'expected at least 2', P.spectral_norm, nn.Linear(2, 3), 'bias' },
})

check('layers refuse', {
  { 'an image without channels', '[nn.BatchNorm2d] input [2, 3, 4]; expected [batch, channels] and '
    .. '2 axes', call(nn.BatchNorm2d(3), zeros(2, 3, 4)) },
  { 'an image for sequences',
    '[nn.BatchNorm1d] input [2, 3, 4, 4]; expected [batch, channels] and 0 or 1 axes',
    call(nn.BatchNorm1d(3), zeros(2, 3, 4, 4)) },
  { 'an output size out of reach', '[nn.ConvTranspose1d] output_size = 12; expected 9 to 10 for an '
    .. 'input of 4', call(nn.ConvTranspose1d(2, 3, 3, { stride = 2 }), zeros(1, 2, 4), 12) },
  { 'another width', '[nn.GRU] input [5, 2, 4]; expected [time, batch, 3]',
    call(nn.GRU(3, 4), zeros(5, 2, 4)) },
  { 'one state of an LSTM', '[nn.LSTM] the first state is no pair; expected { h_0, c_0 }',
    call(nn.LSTM(3, 4), zeros(5, 2, 3), zeros(1, 2, 4)) },
  { 'a state of another batch', '[nn.GRU] a first state of shape [1, 3, 4]; expected [1, 2, 4]',
    call(nn.GRU(3, 4), zeros(5, 2, 3), zeros(1, 3, 4)) },
  { 'lengths of another batch', '[nn.RNN] lengths are int64 [3]; expected a tensor of 2 integers',
    call(nn.RNN(3, 4), zeros(5, 2, 3), nil, { lengths = T.tensor({ 1, 2, 3 }, { dtype = 'int64' })
    }) },
  { 'lengths in a table', '[nn.RNN] lengths are a table; expected a tensor of 2 integers',
    call(nn.RNN(3, 4), zeros(5, 2, 3), nil, { lengths = { 1, 2 } }) },
  { 'the input of a step', '[nn.LSTMCell] input [2, 4]; expected [batch, 3] or [3]',
    call(nn.LSTMCell(3, 4), zeros(2, 4)) },
  { 'a mask of another name', "[nn.TransformerEncoderLayer] unknown option 'mask'; expected "
    .. 'is_causal, src_key_padding_mask, src_mask',
    call(nn.TransformerEncoderLayer(8, 2), zeros(2, 2, 8), { mask = 1 }) },
})

-- What operators say of their operands to who calls them without a layer.
local probe = require('nnscaler._C.trace').probe
local state, weights = zeros(1, 2, 4), { zeros(12, 3), zeros(12, 4) }
local function gru(x, hx, params)
  return probe('aten::gru.input', x, hx, params, false, 1, 0, true, false, false)
end
check('operators refuse', {
  { 'a sequence without a batch', '[annotate.gru] float32[5, 3]; expected [time, batch, width]',
    gru, zeros(5, 3), state, weights },
  { 'too few weights', '[annotate.gru] 1 weights and biases; expected 2 at least', gru,
    zeros(5, 2, 3), state, { weights[1] } },
  { 'weights of another width', 'weights of 5 inputs', gru, zeros(5, 2, 5), state, weights },
  { 'a state of another batch', 'a first state of shape [1, 3, …]', gru, zeros(5, 3, 3), state,
    weights },
  { 'no state', '[annotate.lstm] no first state; expected zeros at least', probe,
    'aten::lstm.input', zeros(5, 2, 3), {}, weights, false, 1, 0, true, false, false },
  { 'dropout of a stack', '[annotate.rnn_tanh] dropout draws random numbers from hidden state; '
    .. 'expected 0', probe, 'aten::rnn_tanh.input', zeros(5, 2, 3), state, weights, false, 1, 0.5,
    true, false, false },
  { 'windows larger than the image', '[annotate.max_pool3d] windows [4, 4, 4] do not fit', probe,
    'aten::max_pool3d', zeros(1, 3, 3, 3, 3), { 4, 4, 4 } },
  { 'windows of no image', '[annotate.im2col] float32[3, 4]; expected [batch, channels, height, '
    .. 'width]', probe, 'aten::im2col', zeros(3, 4), { 2, 2 }, { 1, 1 }, { 0, 0 }, { 1, 1 } },
  { 'columns of other windows', '[annotate.col2im] float32[1, 8, 8]; expected [batch, channels · '
    .. '4, 9]', probe, 'aten::col2im', zeros(1, 8, 8), { 4, 4 }, { 2, 2 }, { 1, 1 }, { 0, 0 },
    { 1, 1 } },
  { 'an image without channels', '[annotate.upsample_nearest2d] float32[4, 4, 4]; expected [batch, '
    .. 'channels, …] with 2 axes of the image', probe, 'aten::upsample_nearest2d', zeros(4, 4, 4),
    { 8, 8 } },
})

local image, ids = zeros(1, 4, 4, 4), T.zeros({ 2, 3 }, { dtype = 'int64' })
check('functions refuse', {
  { 'a reduction', "[functional.soft_margin_loss] reduction 'max'; expected none, mean or sum",
    F.soft_margin_loss, zeros(3), zeros(3), { reduction = 'max' } },
  { 'a probability', '[functional.dropout2d] p is 2; expected a number from 0 to 1', F.dropout2d,
    image, 2 },
  { 'two sizes at once', '[functional.interpolate] size and scale_factor are given; expected one '
    .. 'of them', F.interpolate, image, { size = 3, scale_factor = 2 } },
  { 'no size', '[functional.interpolate] neither size nor scale_factor; expected one of them',
    F.interpolate, image },
  { 'sizes of other axes', '[functional.interpolate] 3 sizes or factors for an image of 2 axes',
    F.interpolate, image, { size = { 1, 2, 3 } } },
  { 'a mode of other axes', "[functional.interpolate] mode 'linear' for an image of 2 axes",
    F.interpolate, image, { size = 3, mode = 'linear' } },
  { 'a mode of another name', "[functional.interpolate] mode 'cubic'; expected nearest",
    F.interpolate, image, { size = 3, mode = 'cubic' } },
  { 'corners of nearest', "[functional.interpolate] align_corners with mode 'nearest'; expected "
    .. 'linear, bilinear, bicubic or trilinear', F.interpolate, image,
    { size = 3, align_corners = true } },
  { 'antialias of nearest', "[functional.interpolate] antialias with mode 'nearest'; expected "
    .. 'bilinear or bicubic', F.interpolate, image, { size = 3, antialias = true } },
  { 'channels that are no square', '[functional.pixel_shuffle] [1, 4, 4, 4]; expected [..., '
    .. 'channels, height, width] with channels divisible by 9', F.pixel_shuffle, image, 3 },
  { 'pixels that do not divide', '[functional.pixel_unshuffle] [1, 4, 4, 4]; expected [..., '
    .. 'channels, height, width] with height and width divisible by 3', F.pixel_unshuffle, image,
    3 },
  { 'groups of channels', '[functional.channel_shuffle] 3 groups of [1, 4, 4, 4]; expected [batch, '
    .. 'channels, …] whose channels they divide', F.channel_shuffle, image, 3 },
  { 'a mode of grids', "[functional.grid_sample] mode 'cubic'; expected bicubic, bilinear, nearest",
    F.grid_sample, image, zeros(1, 2, 2, 2), { mode = 'cubic' } },
  { 'weights of means', "[functional.embedding_bag] per_sample_weights with mode 'mean'; expected "
    .. "'sum'", F.embedding_bag, ids, zeros(3, 2), nil, { per_sample_weights = zeros(2, 3) } },
  { 'bags with offsets', '[functional.embedding_bag] indices of 2 dimensions with offsets; '
    .. 'expected [bags, length] without, or [indices] with', F.embedding_bag, ids, zeros(3, 2),
    ids },
  { 'a variance of other axes', '[functional.gaussian_nll_loss] var has 0 dimensions, input 2; '
    .. 'expected as many, or one less', F.gaussian_nll_loss, zeros(2, 3), zeros(2, 3), zeros() },
})

-- By function, its arguments before the options.
local with_options = {
  cross_entropy = 2, linear_cross_entropy = 3, nll_loss = 2, mse_loss = 2, l1_loss = 2,
  smooth_l1_loss = 2, huber_loss = 2, binary_cross_entropy = 2,
  binary_cross_entropy_with_logits = 2, kl_div = 2, poisson_nll_loss = 2, gaussian_nll_loss = 3,
  ctc_loss = 4, margin_ranking_loss = 3, hinge_embedding_loss = 2, cosine_embedding_loss = 3,
  triplet_margin_loss = 3, triplet_margin_with_distance_loss = 3, soft_margin_loss = 2,
  multilabel_soft_margin_loss = 2, multi_margin_loss = 2, multilabel_margin_loss = 2,
  gumbel_softmax = 1, embedding_bag = 3, conv1d = 3, conv2d = 3, conv3d = 3,
  conv_transpose1d = 3, conv_transpose2d = 3, conv_transpose3d = 3, batch_norm = 3, normalize = 1,
  instance_norm = 3, interpolate = 1, unfold = 2, fold = 3, grid_sample = 2, max_pool1d = 2,
  max_pool2d = 2, max_pool3d = 2, avg_pool1d = 2, avg_pool2d = 2, avg_pool3d = 2,
}

describe('options are refused that a function does not have:', function()
  for name, before in require('nnscaler.sorted').sorted_pairs(with_options) do
    it(name, function()
      local given = {}
      for i = 1, before do given[i] = zeros(2, 2) end
      given[before + 1] = { zzz = 1 }
      says(('[functional.%s] unknown option \'zzz\'; expected '):format(name), F[name],
        unpack(given, 1, before + 1))
      for what, wrong in require('nnscaler.sorted').sorted_pairs {
        ['a number'] = 0.5, ['a tensor'] = zeros(2), ['a string'] = 'sum', } do
        given[before + 1] = wrong
        says(('[functional.%s] options are %s; expected a table with '):format(name, what),
          F[name], unpack(given, 1, before + 1))
      end
    end)
  end
  it('the nearest is named', function()
    says("hint: did you mean 'ignore_index'?", F.cross_entropy, zeros(2, 3), ids,
      { ignor_index = 0 })
  end)
end)
