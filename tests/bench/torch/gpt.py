"""GPT as nanoGPT builds it, for the comparisons with PyTorch: layer norms before each part, learned
positions, one table for embedding and head, no biases. Blocks are modules of their own, so that a
pipeline stage is a slice of the list."""
import math

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {  # layers, heads, width, block, batch
    "tiny": (4, 4, 64, 32, 4),
    "baby": (6, 6, 384, 256, 12),
}


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.merge = nn.Linear(width, width, bias=False)
        self.widen = nn.Linear(width, 4 * width, bias=False)
        self.narrow = nn.Linear(4 * width, width, bias=False)

    def attend(self, x, cache=None):
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.append(k, v)
        # A single query behind all keys sees them all.
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=length > 1)
        return self.merge(y.transpose(1, 2).reshape(batch, length, width))

    def dropped(self, x):
        return F.dropout(x, self.dropout) if self.dropout else x

    def forward(self, x, cache=None):
        x = x + self.dropped(self.attend(self.norm_1(x), cache))
        return x + self.dropped(self.narrow(F.gelu(self.widen(self.norm_2(x)))))


class Cache:
    """Keys and values of one block, for the tokens of a text that goes on."""

    def __init__(self, heads, block, width):
        self.keys, self.values = torch.empty(1, heads, block, width), torch.empty(1, heads, block, width)
        self.length = 0

    def append(self, k, v):
        first, self.length = self.length, self.length + k.shape[2]
        self.keys[:, :, first : self.length] = k
        self.values[:, :, first : self.length] = v
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


class GPT(nn.Module):
    """The blocks first … last - 1 of a model, with what lies before the first and after the last."""

    def __init__(self, preset, vocab, first=0, last=None, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        layers, heads, width, block, _ = SIZES[preset]
        last = layers if last is None else last
        self.begins, self.ends = first == 0, last == layers
        if self.begins:
            self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(block, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(first, last))
        if self.ends:
            self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, vocab, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                inner = "merge" in name or "narrow" in name
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if inner else 0.02)
        if self.begins and self.ends:
            self.head.weight = self.tokens.weight

    def forward(self, x, caches=None):
        if self.begins:
            first = caches[0].length if caches else 0
            x = self.tokens(x) + self.places.weight[first : first + x.shape[1]]
            x = F.dropout(x, self.dropout) if self.dropout else x
        for i, block in enumerate(self.blocks):
            x = block(x, caches[i] if caches else None)
        return self.head(self.norm(x)) if self.ends else x


def loss_of(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batches(block, batch, vocab, count):
    """Random tokens and those that follow them, of all ranks together."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        text = torch.randint(vocab, (batch, block + 1), generator=generator)
        yield text[:, :-1].contiguous(), text[:, 1:].contiguous()
