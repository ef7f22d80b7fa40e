"""Writes tests/lua/nn_values.lua: what PyTorch computes for each layer, for specs without Python.

Run by hand when a case is added:  python tests/equivalence/make_nn_values.py > tests/lua/nn_values.lua
Parameters, inputs and output gradients are waves (see `wave`), which both sides can compute; of
every result only two projections on other waves are stored.
"""
import math

import torch
from torch import nn

D = torch.float64


def wave(k, shape, scale=0.5):
    n = math.prod(shape)
    return torch.tensor([scale * math.sin(0.7 * i + 1.3 * k) for i in range(n)], dtype=D).reshape(shape)


def digest(t):
    t = t.detach().to(D)
    return [float((t * wave(k, t.shape, 1.0)).sum()) for k in (50, 51)]


def labels(n, classes, ignore=()):
    return torch.tensor([-100 if i in ignore else (i * 7 + 3) % classes for i in range(n)])


class GPT(nn.Module):
    """nanoGPT's architecture, written against torch.nn.functional."""

    def __init__(self, vocab, layers, heads, width, block, bias):
        super().__init__()
        self.heads = heads
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(vocab, width), wpe=nn.Embedding(block, width),
            h=nn.ModuleList(nn.ModuleDict(dict(
                ln_1=nn.LayerNorm(width, bias=bias),
                attn=nn.ModuleDict(dict(c_attn=nn.Linear(width, 3 * width, bias=bias),
                                        c_proj=nn.Linear(width, width, bias=bias))),
                ln_2=nn.LayerNorm(width, bias=bias),
                mlp=nn.ModuleDict(dict(c_fc=nn.Linear(width, 4 * width, bias=bias),
                                       c_proj=nn.Linear(4 * width, width, bias=bias)))))
                for _ in range(layers)),
            ln_f=nn.LayerNorm(width, bias=bias)))
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, x, y):
        t = self.transformer
        b, n = x.shape
        h = t.wte(x) + t.wpe(torch.arange(n))
        for block in t.h:
            q, k, v = block.attn.c_attn(block.ln_1(h)).chunk(3, -1)
            q, k, v = (z.view(b, n, self.heads, -1).transpose(1, 2) for z in (q, k, v))
            a = (q @ k.transpose(-1, -2)) / math.sqrt(q.size(-1))
            a = a.masked_fill(torch.ones(n, n).tril() == 0, -math.inf).softmax(-1) @ v
            h = h + block.attn.c_proj(a.transpose(1, 2).reshape(b, n, -1))
            h = h + block.mlp.c_proj(nn.functional.gelu(block.mlp.c_fc(block.ln_2(h))))
        logits = self.lm_head(t.ln_f(h))
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


class Attention(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.inner = nn.MultiheadAttention(6, 2, batch_first=True)

    def named_parameters(self):
        return self.inner.named_parameters()

    def forward(self, x, memory=None):
        m = x if memory is None else memory
        mask = torch.ones(x.size(1), m.size(1)).triu(1) == 1 if self.causal else None
        return self.inner(x, m, m, need_weights=False, attn_mask=mask)[0]




CASES = {
    'linear': (nn.Linear(3, 4), [(2, 3)]),
    'linear_without_bias': (nn.Linear(3, 4, bias=False), [(2, 5, 3)]),
    'embedding': (nn.Embedding(7, 3), [labels(6, 7)]),
    'layer_norm': (nn.LayerNorm(4), [(3, 4)]),
    'layer_norm_2d': (nn.LayerNorm((3, 4), eps=1e-3, bias=False), [(2, 3, 4)]),
    'rms_norm': (nn.RMSNorm(4, eps=1e-5), [(3, 4)]),
    'rms_norm_default_eps': (nn.RMSNorm(4, elementwise_affine=False), [(3, 4)]),
    'batch_norm': (nn.BatchNorm2d(3), [(2, 3, 4, 5)]),
    'batch_norm_eval': (nn.BatchNorm2d(3).eval(), [(2, 3, 4, 5)]),
    'gelu': (nn.GELU(), [(3, 4)]),
    'gelu_tanh': (nn.GELU(approximate='tanh'), [(3, 4)]),
    'relu': (nn.ReLU(), [(3, 4)]),
    'silu': (nn.SiLU(), [(3, 4)]),
    'tanh': (nn.Tanh(), [(3, 4)]),
    'sigmoid': (nn.Sigmoid(), [(3, 4)]),
    'conv': (nn.Conv2d(2, 4, 3), [(2, 2, 5, 6)]),
    'conv_options': (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2,
                               bias=False), [(2, 4, 7, 6)]),
    'max_pool': (nn.MaxPool2d(3, stride=2, padding=1), [(2, 3, 7, 6)]),
    'adaptive_pool': (nn.AdaptiveAvgPool2d((2, 3)), [(2, 3, 7, 8)]),
    'attention': (Attention(False), [(2, 4, 6)]),
    'attention_causal': (Attention(True), [(2, 4, 6)]),
    'attention_memory': (Attention(False), [(2, 4, 6), (2, 3, 6)]),
    'cross_entropy': (nn.CrossEntropyLoss(), [(5, 4), labels(5, 4)]),
    'cross_entropy_options': (nn.CrossEntropyLoss(label_smoothing=0.1), [(5, 4), labels(5, 4, (1, 3))]),
    'bce': (nn.BCELoss(), ['probability', 'probability']),
    'bce_with_logits': (nn.BCEWithLogitsLoss(), [(3, 4), 'probability']),
    'mse': (nn.MSELoss(), [(3, 4), (3, 4)]),
    'gpt': (GPT(11, 2, 2, 8, 6, True), [labels(12, 11).view(2, 6), labels(12, 9, (0, 7)).view(2, 6)]),
    'gpt_without_bias': (GPT(11, 2, 4, 8, 6, False), [labels(8, 11).view(2, 4), labels(8, 9).view(2, 4)]),
}


def make(spec, k):
    if isinstance(spec, tuple):
        return wave(k, spec).requires_grad_()
    if spec == 'probability':
        return (wave(k, (3, 4)).sigmoid()).detach().requires_grad_(k == 30)
    return spec


def show(numbers):
    return '{ ' + ', '.join('%.17g' % n for n in numbers) + ' }'


print('--- What PyTorch computes for the cases of nn_layers_spec.lua; written by')
print('--- tests/equivalence/make_nn_values.py. Two projections of each result.')
print('return {')
for name, (layer, inputs) in CASES.items():
    layer.to(D)
    params = list(layer.named_parameters())
    with torch.no_grad():
        for k, (_, p) in enumerate(params):
            p.copy_(wave(k, p.shape) + (1 if p.dim() == 1 else 0))
    xs = [make(s, 30 + i) for i, s in enumerate(inputs)]
    y = layer(*xs)
    y.backward(wave(40, y.shape, 1.0) if y.dim() else None)
    print('  %s = {' % name)
    print('    output = %s,' % show(digest(y)))
    print('    inputs = {')
    for x in xs:
        print('      %s,' % (show(digest(x.grad)) if x.grad is not None else 'false'))
    print('    },')
    for title, items in (('parameters', [(n, p.grad) for n, p in params]),
                         ('buffers', [(n, b) for n, b in layer.named_buffers()])):
        if items:
            print('    %s = {' % title)
            for n, t in items:
                print("      { '%s', %s }," % (n, ', '.join('%.17g' % d for d in digest(t))))
            print('    },')
    print('  },')
print('}')
