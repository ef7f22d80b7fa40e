"""What models of all kinds are made of, in small ones: buffers that are trained beside the weights,
odd head counts and lengths, sizes left open, routing, signals. Exported in float64 with what PyTorch
makes of them in three steps (as export.py does): the other oracle of tests/long/import_spec.lua.

usage: constructs.py FOLDER      writes NAME.pt2 and NAME.safetensors
"""
import os
import sys

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import export

ROWS = export.ROWS


class Codebook(nn.Module):
    """A codebook that follows what is written to it; one that counts its steps."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(6, 4), nn.Linear(4, 6)
        self.register_buffer("codes", torch.randn(5, 4))
        self.register_buffer("count", torch.ones(5))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x, y):
        z = self.into(x)
        nearest = torch.cdist(z, self.codes).argmin(1)
        picked = F.one_hot(nearest, 5).to(z.dtype)
        with torch.no_grad():
            self.count.mul_(0.9).add_(picked.sum(0), alpha=0.1)
            self.codes.lerp_(picked.t() @ z / (picked.sum(0)[:, None] + 1e-3), 0.1)
            self.steps += 1
        code = self.codes[nearest]
        return F.mse_loss(self.out(z + (code - z).detach()), y) + F.mse_loss(z, code.detach())

    arguments = staticmethod(lambda: (torch.randn(ROWS, 6), torch.randn(ROWS, 6)))


class Frozen(nn.Module):
    """Frozen, unused, empty and 0-dim parameters; a weight used straight and transposed."""

    def __init__(self):
        super().__init__()
        self.fc, self.unused = nn.Linear(6, 8), nn.Linear(3, 3)
        self.fc.weight.requires_grad_(False)
        self.scale, self.shift = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.ones(1))
        self.nothing, self.bias = nn.Parameter(torch.empty(0, 8)), nn.Parameter(torch.zeros(6))

    def forward(self, x, y):
        h = F.silu(self.fc(x)) * self.scale + self.shift
        h = torch.cat([h, h @ self.nothing.t()], 1)
        return F.mse_loss(h @ self.fc.weight + self.bias, y)

    arguments = Codebook.arguments


class Padded(nn.Module):
    """Encoder and decoder with 5 and 3 heads of odd width, texts of 7 and 9 tokens, padding."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(17, 15, padding_idx=0)
        self.encoder = nn.TransformerEncoderLayer(15, 5, 20, 0.0, "gelu", norm_first=True,
                                                  batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(15, 3, 20, 0.0, batch_first=True)
        self.head = nn.Linear(15, 17)

    def forward(self, x, y):
        padding = x == 0
        h = self.encoder(self.words(x), src_key_padding_mask=padding)
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1], dtype=h.dtype)
        h = self.decoder(self.words(y), h, tgt_mask=mask, memory_key_padding_mask=padding)
        return F.cross_entropy(self.head(h).transpose(1, 2), y, ignore_index=0)

    @staticmethod
    def arguments():
        x = torch.randint(1, 17, (ROWS, 7))
        x[:, 5:] = 0
        x[0, 3:] = 0
        return x, torch.randint(1, 17, (ROWS, 9))


class Grouped(nn.Module):
    """6 heads, 3 of keys, 7 tokens of 257, complex rotations, a window, a tied head."""

    def __init__(self, width=24, heads=6, keys=3):
        super().__init__()
        self.heads, self.keys, self.each = heads, keys, width // heads
        self.words, self.norm = nn.Embedding(257, width), nn.RMSNorm(width)
        self.q, self.out = nn.Linear(width, width, False), nn.Linear(width, width, False)
        self.kv = nn.Linear(width, 2 * keys * self.each, False)
        self.up, self.down = nn.Linear(width, 72), nn.Linear(36, width)

    def turned(self, x):
        places = torch.arange(x.shape[2], dtype=x.dtype)
        speeds = 100.0 ** (-torch.arange(0, self.each, 2, dtype=x.dtype) / self.each)
        angles = torch.outer(places, speeds)
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(z * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    def forward(self, x, y):
        rows, length = x.shape
        h = self.words(x)
        z = self.norm(h)
        q = self.q(z).view(rows, length, self.heads, -1).transpose(1, 2)
        k, v = self.kv(z).view(rows, length, 2, self.keys, -1).permute(2, 0, 3, 1, 4).unbind(0)
        at = torch.arange(length)
        window = (at[:, None] >= at) & (at[:, None] - at < 4)
        a = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, attn_mask=window,
                                           enable_gqa=True)
        h = h + self.out(a.transpose(1, 2).flatten(2))
        gate, up = self.up(self.norm(h)).chunk(2, -1)
        h = h + self.down(F.silu(gate) * up)
        return F.cross_entropy(F.linear(h, self.words.weight).view(-1, 257), y.view(-1))

    arguments = staticmethod(lambda: (torch.randint(257, (ROWS, 7)), torch.randint(257, (ROWS, 7))))


class OneKey(Grouped):
    """5 heads that share one of keys."""

    def __init__(self):
        super().__init__(20, 5, 1)


class Open(Grouped):
    """Rows and length left open, and numbers made of them."""

    def forward(self, x, y):
        rows, length = x.shape
        h = self.words(x)
        h = h + self.norm(h).flip(1) + (length // 2 + length % 2) / length
        h = self.down(F.gelu(self.up(h.reshape(rows * length, -1))[:, :36]))
        each = torch.full((rows * length,), 1.0 / (rows * length), dtype=h.dtype)
        scores = F.linear(h, self.words.weight)
        return (F.cross_entropy(scores, y.reshape(-1), reduction="none") * each).sum()

    sizes = {0: torch.export.Dim("rows", min=2, max=64), 1: torch.export.Dim("length", min=4, max=64)}
    dynamic_shapes = (sizes, sizes)


class Routes(nn.Module):
    """Two of four experts, a bag of words, sorting, sums along rows, writes to slices."""

    def __init__(self):
        super().__init__()
        self.route, self.experts = nn.Linear(6, 4), nn.Parameter(torch.randn(4, 6, 5))
        self.bag = nn.EmbeddingBag(9, 5, mode="mean")

    def forward(self, x, ids, y):
        scores = F.softmax(self.route(x), -1)
        best, which = scores.topk(2)
        gate = torch.zeros_like(scores).scatter(1, which, best / best.sum(-1, keepdim=True))
        h = torch.einsum("be,bi,eio->bo", gate, x, self.experts) + self.bag(ids)
        h = h.roll(1, 1).masked_fill(h < -2, 0.0)
        z = h.sort(dim=1, descending=True)[0].cumsum(1).clamp(-4, 4)
        out = z.clone()
        out[:, 0] = h[:, 1] * 2
        out[:, 2:4] += h[:, :2]
        return (F.huber_loss(out, y) + 0.01 * torch.logsumexp(out, 1).square().mean()
                + F.triplet_margin_loss(out, y, h))

    arguments = staticmethod(lambda: (torch.randn(ROWS, 6), torch.randint(9, (ROWS, 4)),
                                      torch.randn(ROWS, 5)))


class Signals(nn.Module):
    """Fourier transforms, reflected borders, grids, images enlarged and cut into patches."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, padding=1, padding_mode="reflect")
        self.filter, self.out = nn.Parameter(torch.randn(2, 6, 4, 2)), nn.Conv2d(2, 2, 1)

    def forward(self, x, y):
        z = torch.fft.rfft2(x) * torch.view_as_complex(self.filter)
        h = x + torch.fft.irfft2(z, s=x.shape[-2:])
        h = F.pixel_shuffle(F.celu(self.conv(h)), 2)
        h = F.interpolate(h, size=(7, 5), mode="bilinear", align_corners=False)
        turn = torch.eye(2, 3, dtype=x.dtype).expand(x.shape[0], 2, 3) * 0.9
        grid = F.affine_grid(turn, [x.shape[0], 2, 6, 6], align_corners=False)
        h = self.out(F.grid_sample(h, grid, align_corners=False))
        patches = F.unfold(h, 3, stride=2).mean(-1)
        return F.l1_loss(patches, y) + F.adaptive_max_pool2d(h, 2).var()

    arguments = staticmethod(lambda: (torch.randn(ROWS, 2, 6, 6), torch.randn(ROWS, 18)))


class Again(nn.Module):
    """One layer called three times and again in backward, weights tied three times, shared buffers."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.same, self.head.weight = self.layer, self.layer.weight
        slope = torch.linspace(0, 1, 6)
        self.register_buffer("one", slope)
        self.register_buffer("two", slope)

    def forward(self, x, y):
        for _ in range(3):
            x = torch.utils.checkpoint.checkpoint(
                lambda x: torch.tanh(self.layer(x)) + self.same(x) * self.one, x, use_reentrant=False)
        return F.mse_loss(self.head(x) * self.two, y)

    arguments = Codebook.arguments


class ChannelsLast(export.ResNet):
    """Weights and images whose channels lie side by side."""

    def __init__(self):
        super().__init__()
        self.to(memory_format=torch.channels_last)

    @staticmethod
    def arguments():
        images, classes = export.ResNet.arguments(ROWS)
        return images.to(memory_format=torch.channels_last), classes


CASES = {case.__name__: case for case in (Codebook, Frozen, Padded, Grouped, OneKey, Open, Routes, Signals,
                                          Again, ChannelsLast)}


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    export.RATE = 1e-3
    for number, (name, case) in enumerate(CASES.items()):
        torch.manual_seed(number)
        model = case().double().train()
        batches = [export.double(case.arguments()) for _ in range(export.MICRO_BATCHES)]
        export.export(model, batches[0], os.path.join(folder, name + ".pt2"),
                      getattr(case, "dynamic_shapes", None))
        out = {f"in/{k}/{i}": a for k, args in enumerate(batches) for i, a in enumerate(args)}
        export.train(model, batches, out)
        save_file({k: v.contiguous().clone() for k, v in out.items()},
                  os.path.join(folder, name + ".safetensors"))


main()
