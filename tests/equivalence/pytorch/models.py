"""Models in plain PyTorch for architectures.py: what its libraries have no small one of."""
import torch
from torch import nn
from torch.nn import functional as F

ROWS = 2


class UNet(nn.Module):
    """Diffusion: predicts noise; time embedding, group norm, attention, a path up and down."""

    class Block(nn.Module):
        def __init__(self, into, out, time):
            super().__init__()
            self.norm1, self.conv1 = nn.GroupNorm(4, into), nn.Conv2d(into, out, 3, padding=1)
            self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
            self.time, self.short = nn.Linear(time, out), nn.Conv2d(into, out, 1)

        def forward(self, x, t):
            h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
            return self.conv2(F.silu(self.norm2(h))) + self.short(x)

    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.stem, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down1, self.down2 = self.Block(width, width, 32), self.Block(width, 2 * width, 32)
        self.mid = self.Block(2 * width, 2 * width, 32)
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up2, self.up1 = self.Block(4 * width, width, 32), self.Block(2 * width, width, 32)

    def forward(self, images, noise, times):
        angle = times[:, None] * torch.exp(-torch.arange(8, dtype=images.dtype))
        t = F.silu(self.embed(torch.cat([angle.sin(), angle.cos()], -1)))
        one = self.down1(self.stem(images + noise), t)
        two = self.down2(F.avg_pool2d(one, 2), t)
        h = self.mid(F.max_pool2d(two, 2), t)
        tokens = h.flatten(2).transpose(1, 2)
        h = h + self.attention(tokens, tokens, tokens)[0].transpose(1, 2).reshape(h.shape)
        h = self.up2(torch.cat([F.interpolate(h, scale_factor=2.0), two], 1), t)
        h = self.up1(torch.cat([F.interpolate(h, scale_factor=2.0), one], 1), t)
        return F.mse_loss(self.out(h), noise)

    @staticmethod
    def arguments():
        return torch.randn(ROWS, 3, 16, 16), torch.randn(ROWS, 3, 16, 16), torch.rand(ROWS)


class DiT(nn.Module):
    """Diffusion by a transformer whose norms are shifted and scaled by time."""

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width, elementwise_affine=False)
            self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"),
                                     nn.Linear(4 * width, width))
            self.modulate = nn.Linear(width, 6 * width)

        def forward(self, x, t):
            a, b, c, d, e, f = self.modulate(F.silu(t))[:, None].chunk(6, -1)
            h = self.norm(x) * (1 + a) + b
            x = x + c * self.attention(h, h, h, need_weights=False)[0]
            return x + f * self.mlp(self.norm(x) * (1 + d) + e)

    def __init__(self, width=32):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.place = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList([self.Block(width) for _ in range(2)])
        self.out = nn.Linear(width, 48)

    def forward(self, images, noise, times):
        x = self.patch(images + noise).flatten(2).transpose(1, 2) + self.place
        t = self.time(times[:, None])
        for block in self.blocks:
            x = block(x, t)
        return F.mse_loss(F.fold(self.out(x).transpose(1, 2), 16, 4, stride=4), noise)

    arguments = UNet.arguments


class Detr(nn.Module):
    """Boxes of queries; which query stands for which box is given."""

    def __init__(self, width=32, queries=6):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.place = nn.Parameter(torch.randn(1, 16, width))
        self.queries = nn.Parameter(torch.randn(queries, width))
        self.transformer = nn.Transformer(width, 4, 1, 1, 64, 0.0, batch_first=True)
        self.classes, self.boxes = nn.Linear(width, 5), nn.Linear(width, 4)

    def forward(self, images, match, classes, boxes):
        x = self.patch(images).flatten(2).transpose(1, 2) + self.place
        h = self.transformer(x, self.queries.expand(x.shape[0], -1, -1))
        picked = h.gather(1, match[..., None].expand(-1, -1, h.shape[-1]))
        loss = F.cross_entropy(self.classes(picked).flatten(0, 1), classes.flatten())
        return loss + F.l1_loss(self.boxes(picked).sigmoid(), boxes)

    @staticmethod
    def arguments():
        match = torch.stack([torch.randperm(6)[:3] for _ in range(ROWS)])
        return (torch.randn(ROWS, 3, 16, 16), match, torch.randint(5, (ROWS, 3)),
                torch.rand(ROWS, 3, 4))


class GraphNetwork(nn.Module):
    """Messages along edges, summed at nodes."""

    def __init__(self, width=16):
        super().__init__()
        self.into = nn.Linear(4, width)
        self.message = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(2)])
        self.out = nn.Linear(width, 3)

    def forward(self, nodes, sources, targets, classes):
        x = self.into(nodes)
        for message in self.message:
            sent = F.relu(message(torch.cat([x[sources], x[targets]], -1)))
            x = x + torch.zeros_like(x).index_add(0, targets, sent)
        return F.cross_entropy(self.out(x), classes)

    @staticmethod
    def arguments():
        return (torch.randn(10, 4), torch.randint(10, (30,)), torch.randint(10, (30,)),
                torch.randint(3, (10,)))


class Lstm(nn.Module):
    """Two layers of LSTM both ways over a text, a GRU above them, the last state told apart."""

    def __init__(self, width=16):
        super().__init__()
        self.words = nn.Embedding(32, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(2 * width, width, batch_first=True)
        self.out = nn.Linear(width, 5)

    def forward(self, texts, classes):
        h, _ = self.lstm(self.words(texts))
        _, last = self.gru(h)
        return F.cross_entropy(self.out(last[0]), classes)

    @staticmethod
    def arguments():
        return torch.randint(32, (ROWS, 12)), torch.randint(5, (ROWS,))
