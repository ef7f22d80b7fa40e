"""Writes tests/lua/layer_values.lua: what PyTorch computes for the layers of nn_families_spec.lua.

Run by hand when a case is added:
    python tests/equivalence/make_layer_values.py > tests/lua/layer_values.lua
Waves as in make_nn_values.py. Of a case two projections are stored of its results, of all gradients
(inputs, then parameters) and of its buffers, and the names of parameters and buffers in order.
"""
import math
import textwrap

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations as P

D = torch.float64


def wave(k, shape, scale=0.5):
    n = math.prod(shape)
    return torch.tensor([scale * math.sin(0.7 * i + 1.3 * k) for i in range(n)], dtype=D).reshape(shape)


def digest(tensors):
    return [sum(float((t.detach().to(D) * wave(k + i, t.shape, 1.0)).sum()) for i, t in enumerate(tensors))
            for k in (50, 51)]


def ints(high, *shape):
    return torch.tensor([(i * 7 + 3) % high for i in range(math.prod(shape))]).reshape(shape)


def sign(*shape):
    return torch.tensor([1.0 if i % 3 else -1.0 for i in range(math.prod(shape))], dtype=D).reshape(shape)


def prob(k, *shape):
    return wave(k, shape).sigmoid()


def given(*numbers):
    return torch.tensor(numbers)


class Call(nn.Module):
    """A function as a layer."""

    def __init__(self, f, layer=None):
        super().__init__()
        self.f = f
        self.layer = layer

    def named_parameters(self):
        return self.layer.named_parameters() if self.layer else iter(())

    def named_buffers(self):
        return self.layer.named_buffers() if self.layer else iter(())

    def forward(self, *xs):
        return self.f(*xs)


def padded(layer, lengths):
    def f(x):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=layer.batch_first,
                                                   enforce_sorted=False)
        y, last = layer(packed)
        return nn.utils.rnn.pad_packed_sequence(y, batch_first=layer.batch_first)[0], last
    return Call(f, layer)


def masked_encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, activation='gelu', norm_first=True, batch_first=True)
    padding = torch.tensor([[False, False, False, True], [False, False, False, False]])
    mask = torch.ones(4, 4).triu(1) == 1
    return Call(lambda x: layer(x, src_mask=mask, src_key_padding_mask=padding), layer)


def decoder():
    layer = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0)
    mask = nn.Transformer.generate_square_subsequent_mask(3, dtype=D)
    return Call(lambda x, m: layer(x, m, tgt_mask=mask), layer)


def stacked():
    model = nn.Transformer(8, 2, 2, 1, 12, dropout=0.0, batch_first=True)
    return Call(lambda s, t: model(s, t), model)


LENGTHS = (2, 4, 1)
X1, X2, X3 = (2, 4, 6), (2, 4, 6, 5), (2, 4, 4, 5, 6)
ROWS = (3, 4)
CASES = [
    ('conv1d', nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), [X1]),
    ('conv1d_same', nn.Conv1d(4, 6, 4, padding='same'), [X1]),
    ('conv2d_reflect', nn.Conv2d(4, 6, 3, padding=(1, 2), padding_mode='reflect'), [X2]),
    ('conv2d_circular', nn.Conv2d(4, 6, 2, padding='same', padding_mode='circular'), [X2]),
    ('conv3d', nn.Conv3d(4, 2, 2, dilation=(1, 2, 1)), [X3]),
    ('conv_transpose1d', nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1, groups=2), [X1]),
    ('conv_transpose2d', nn.ConvTranspose2d(4, 3, 3, padding=1, dilation=2), [X2]),
    ('conv_transpose3d', nn.ConvTranspose3d(4, 2, 2, stride=2), [X3]),
    ('batch_norm1d', nn.BatchNorm1d(4), [(3, 4)]),
    ('batch_norm1d_long', nn.BatchNorm1d(4, affine=False, momentum=0.3), [X1]),
    ('batch_norm3d', nn.BatchNorm3d(4, track_running_stats=False), [X3]),
    ('instance_norm1d', nn.InstanceNorm1d(4), [X1]),
    ('instance_norm2d', nn.InstanceNorm2d(4, affine=True, track_running_stats=True), [X2]),
    ('instance_norm2d_eval', nn.InstanceNorm2d(4, affine=True, track_running_stats=True).eval(), [X2]),
    ('instance_norm3d', nn.InstanceNorm3d(4, affine=True, eps=1e-3), [X3]),
    ('group_norm', nn.GroupNorm(2, 4), [X2]),
    ('local_response_norm', nn.LocalResponseNorm(3, alpha=0.1), [X2]),
    ('rnn', nn.RNN(3, 4, 2, nonlinearity='relu', bidirectional=True), [(5, 2, 3)]),
    ('gru', nn.GRU(3, 4, batch_first=True), [(2, 5, 3)]),
    ('gru_state', nn.GRU(3, 4, 2, bias=False), [(5, 2, 3), (2, 2, 4)]),
    ('lstm', nn.LSTM(3, 4, 2, bidirectional=True), [(5, 2, 3)]),
    ('lstm_projected', nn.LSTM(3, 4, proj_size=2), [(5, 2, 3)]),
    ('lstm_unbatched', nn.LSTM(3, 4), [(5, 3)]),
    ('rnn_lengths', padded(nn.RNN(3, 4), LENGTHS), [(4, 3, 3)]),
    ('gru_lengths', padded(nn.GRU(3, 4, 2, bidirectional=True, batch_first=True), LENGTHS), [(3, 4, 3)]),
    ('lstm_lengths', padded(nn.LSTM(3, 4, 2, bidirectional=True), LENGTHS), [(4, 3, 3)]),
    ('lstm_lengths_projected', padded(nn.LSTM(3, 4, proj_size=2, batch_first=True), LENGTHS), [(3, 4, 3)]),
    ('rnn_cell', nn.RNNCell(3, 4), [(2, 3), (2, 4)]),
    ('gru_cell', nn.GRUCell(3, 4), [(2, 3), (2, 4)]),
    ('lstm_cell', nn.LSTMCell(3, 4, bias=False), [(2, 3)]),
    ('encoder_layer', nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0), [(4, 2, 8)]),
    ('encoder_layer_masked', masked_encoder(), [(2, 4, 8)]),
    ('decoder_layer', decoder(), [(3, 2, 8), (4, 2, 8)]),
    ('transformer', stacked(), [(2, 4, 8), (2, 3, 8)]),
    ('avg_pool1d', nn.AvgPool1d(3, 2, 1, count_include_pad=False), [X1]),
    ('avg_pool2d', nn.AvgPool2d((3, 2), 2, (1, 1), ceil_mode=True, divisor_override=4), [X2]),
    ('avg_pool3d', nn.AvgPool3d(2, stride=1), [X3]),
    ('max_pool1d', nn.MaxPool1d(3, 2, 1, ceil_mode=True), [X1]),
    ('max_pool3d', nn.MaxPool3d(2), [X3]),
    ('lp_pool1d', nn.LPPool1d(2, 3), [X1]),
    ('lp_pool2d', nn.LPPool2d(2, (3, 2), stride=2), [X2]),
    ('adaptive_avg_pool1d', nn.AdaptiveAvgPool1d(4), [X1]),
    ('adaptive_avg_pool3d', nn.AdaptiveAvgPool3d((2, 3, 1)), [X3]),
    ('adaptive_max_pool1d', nn.AdaptiveMaxPool1d(4), [X1]),
    ('adaptive_max_pool2d', nn.AdaptiveMaxPool2d(3), [X2]),
    ('adaptive_max_pool3d', nn.AdaptiveMaxPool3d((2, 3, 1)), [X3]),
    ('constant_pad', nn.ConstantPad2d((1, 0, 2, 1), 0.3), [X2]),
    ('reflection_pad', nn.ReflectionPad1d((2, 1)), [X1]),
    ('replication_pad', nn.ReplicationPad3d(1), [X3]),
    ('circular_pad', nn.CircularPad2d((1, 2, 0, 1)), [X2]),
    ('pixel_shuffle', nn.PixelShuffle(2), [X2]),
    ('pixel_unshuffle', nn.PixelUnshuffle(2), [(2, 3, 4, 6)]),
    ('channel_shuffle', nn.ChannelShuffle(2), [X2]),
    ('unfold', nn.Unfold((2, 3), padding=1, stride=2), [X2]),
    ('fold', nn.Fold((5, 4), 2, dilation=(2, 1)), [(2, 8, 9)]),
    ('unflatten', nn.Sequential(nn.Flatten(), nn.Unflatten(1, (3, -1))), [X1]),
    ('upsample_nearest', nn.Upsample(scale_factor=1.6), [X1]),
    ('upsample_exact', nn.Upsample(size=(7, 9), mode='nearest-exact'), [X2]),
    ('upsample_linear', nn.Upsample(size=9, mode='linear', align_corners=True), [X1]),
    ('upsample_bilinear', nn.Upsample(scale_factor=(1.5, 2), mode='bilinear'), [X2]),
    ('upsample_bilinear_sizes', nn.Upsample(scale_factor=1.3, mode='bilinear', recompute_scale_factor=True), [X2]),
    ('upsample_bicubic', nn.Upsample(size=(9, 7), mode='bicubic'), [X2]),
    ('upsample_trilinear', nn.Upsample(scale_factor=2, mode='trilinear'), [X3]),
    ('upsample_area', Call(lambda x: F.interpolate(x, size=(4, 3), mode='area')), [X2]),
    ('upsample_antialias', Call(lambda x: F.interpolate(x, size=(3, 4), mode='bilinear', antialias=True)), [X2]),
    ('bilinear', nn.Bilinear(3, 4, 2), [(5, 3), (5, 4)]),
    ('bag_mean', nn.EmbeddingBag(7, 3), [ints(7, 4, 3)]),
    ('bag_max', nn.EmbeddingBag(7, 3, mode='max', padding_idx=2), [ints(7, 4, 3)]),
    ('bag_sum', Call(lambda w: F.embedding_bag(ints(7, 4, 3), wave(9, (7, 3)), mode='sum', per_sample_weights=w)),
     [(4, 3)]),
    ('bag_offsets', nn.EmbeddingBag(7, 3, padding_idx=2), [ints(7, 6), given(0, 2, 3)]),
    ('prelu', nn.PReLU(4), [X1]),
    ('cosine_similarity', nn.CosineSimilarity(), [X1, X1]),
    ('pairwise_distance', nn.PairwiseDistance(p=3, keepdim=True), [ROWS, ROWS]),
    ('cdist', Call(torch.cdist), [(3, 4), (5, 4)]),
    ('grid_sample', Call(lambda x, t: F.grid_sample(x, F.affine_grid(t, (2, 4, 3, 3), align_corners=True),
                                                    padding_mode='border', align_corners=False)),
     [X2, (2, 2, 3)]),
    ('weight_norm', P.weight_norm(nn.Linear(3, 4)), [(2, 3)]),
    ('weight_norm_conv', P.weight_norm(nn.Conv1d(4, 6, 3), dim=1), [X1]),
    ('spectral_norm', P.spectral_norm(nn.Linear(3, 4)), [(2, 3)]),
    ('spectral_norm_conv', P.spectral_norm(nn.ConvTranspose1d(4, 6, 3), n_power_iterations=2), [X1]),
]
for name, args in [
    ('ReLU6', ()), ('LeakyReLU', (0.2,)), ('ELU', (0.7,)), ('SELU', ()), ('CELU', (0.7,)), ('GLU', (1,)),
    ('Hardtanh', (-0.2, 0.3)), ('Hardswish', ()), ('Hardsigmoid', ()), ('Hardshrink', (0.2,)),
    ('Softshrink', (0.1,)), ('Tanhshrink', ()), ('Softplus', (2, 0.5)), ('Softsign', ()), ('LogSigmoid', ()),
    ('Threshold', (0.1, 2)), ('Softmax', (1,)), ('LogSoftmax', (2,)), ('Softmin', (0,)), ('Mish', ()),
    ('Softmax2d', ()),
]:
    CASES.append((name, getattr(nn, name)(*args), [X2]))
for name, options, inputs in [
    ('L1Loss', {}, [ROWS, ROWS]), ('SmoothL1Loss', {'beta': 0.3}, [ROWS, ROWS]),
    ('HuberLoss', {'delta': 0.3, 'reduction': 'sum'}, [ROWS, ROWS]),
    ('NLLLoss', {'ignore_index': 1}, [(5, 4), ints(4, 5)]),
    ('CrossEntropyLoss', {'weight': prob(8, 4), 'label_smoothing': 0.1}, [(2, 4, 3), ints(4, 2, 3)]),
    ('KLDivLoss', {'reduction': 'batchmean'}, [ROWS, prob(31, 3, 4)]),
    ('KLDivLoss', {'log_target': True}, [ROWS, ROWS]),
    ('BCELoss', {'weight': prob(8, 4)}, ['probability', prob(31, 3, 4)]),
    ('BCEWithLogitsLoss', {'pos_weight': prob(8, 4)}, [ROWS, prob(31, 3, 4)]),
    ('PoissonNLLLoss', {'full': True}, [ROWS, ints(5, 3, 4).to(D)]),
    ('PoissonNLLLoss', {'log_input': False}, ['probability', ints(5, 3, 4).to(D)]),
    ('GaussianNLLLoss', {'full': True}, [ROWS, ROWS, prob(32, 3, 1)]),
    ('MarginRankingLoss', {'margin': 0.1}, [ROWS, ROWS, sign(3, 4)]),
    ('HingeEmbeddingLoss', {'margin': 0.3}, [ROWS, sign(3, 4)]),
    ('CosineEmbeddingLoss', {'margin': -0.4}, [(5, 4), (5, 4), sign(5)]),
    ('TripletMarginLoss', {'swap': True, 'p': 3.0}, [ROWS, ROWS, ROWS]),
    ('TripletMarginWithDistanceLoss', {'margin': 0.5}, [ROWS, ROWS, ROWS]),
    ('SoftMarginLoss', {}, [ROWS, sign(3, 4)]),
    ('MultiMarginLoss', {'p': 2, 'weight': prob(8, 4)}, [(5, 4), ints(4, 5)]),
    ('MultiLabelMarginLoss', {}, [ROWS, given((3, 0, -1, 1), (1, -1, 0, 2), (0, 1, 2, -1))]),
    ('MultiLabelSoftMarginLoss', {'weight': prob(8, 4)}, [ROWS, ints(2, 3, 4).to(D)]),
    ('CTCLoss', {}, [(6, 2, 4), 1 + ints(3, 2, 2), given(6, 5), given(2, 1)]),
]:
    CASES.append((f"{name}{'_again' if any(c[0] == name for c in CASES) else ''}", getattr(nn, name)(**options),
                  inputs))


def make(spec, k):
    if isinstance(spec, tuple):
        return wave(k, spec).requires_grad_()
    if isinstance(spec, str):
        return prob(k, 3, 4).requires_grad_()
    return spec


def flat(y):
    return [t for part in y for t in flat(part)] if isinstance(y, (tuple, list)) else [y]


def show(numbers):
    return '{ ' + ', '.join('%.17g' % n for n in numbers) + ' }'


print('--- What PyTorch computes for the cases of nn_families_spec.lua; written by')
print('--- tests/equivalence/make_layer_values.py: projections of results, gradients and buffers.')
print('return {')
for name, layer, inputs in CASES:
    layer.to(D)
    params, buffers = list(layer.named_parameters()), list(layer.named_buffers())
    with torch.no_grad():
        for k, (_, p) in enumerate(params):
            p.copy_(wave(k, p.shape) + (1 if p.dim() == 1 else 0))
        for k, (n, b) in enumerate(buffers):
            if n.endswith(('._u', '._v')):
                b.copy_(F.normalize(wave(20 + k, b.shape), dim=0))
    xs = [make(s, 30 + i) for i, s in enumerate(inputs)]
    ys = flat(layer(*xs))
    sum((y * wave(40 + i, y.shape, 1.0)).sum() for i, y in enumerate(ys)).backward()
    print("  ['%s'] = {" % name)
    print('    output = %s,' % show(digest(ys)))
    grads = [x.grad for x in xs if x.grad is not None] + [p.grad for _, p in params]
    print('    gradients = %s,' % show(digest(grads)))
    if buffers:
        print('    buffers = %s,' % show(digest([b for _, b in buffers])))
    if params or buffers:
        lines = textwrap.wrap(' '.join(n for n, _ in params + buffers), 84, break_on_hyphens=False)
        print("    names = %s," % "\n      .. ".join("'%s'" % line for line in [lines[0]] + [' ' + x for x in lines[1:]]))
    print('  },')
print('}')
