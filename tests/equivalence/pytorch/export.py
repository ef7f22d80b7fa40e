"""Models with their loss, exported by torch.export in float64, and what PyTorch makes of them: the
oracle of tests/equivalence/import.

usage: export.py FOLDER
Writes CASE.pt2 and CASE.safetensors: arguments in/MICRO/INDEX; loss/STEP of three steps of plain
descent over two micro-batches each; weights w/NAME and buffers b/NAME after them; s/NAME: the state
before. CASE_eval.pt2 is the evaluation variant, whose loss of micro-batch 0 is evaluated.
"""
import collections
import os
import sys

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree

STEPS, MICRO_BATCHES, ROWS, RATE = 3, 2, 6, 0.1


Range = collections.namedtuple("Range", "least most")
_pytree._register_namedtuple(Range, serialized_type_name="export.Range")


class Mlp(nn.Module):
    """Tied weights, a buffer, a constant, a nested result, any number of rows."""

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.fc, self.proj = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, x):
            return x + self.proj(F.relu(self.fc(x)))

    def __init__(self, width=8):
        super().__init__()
        self.path = nn.Linear(6, width)  # a name that modules use themselves
        self.blocks = nn.ModuleList([self.Block(width) for _ in range(4)])
        self.head, self.tied = nn.Linear(width, 6, bias=False), nn.Linear(width, 6, bias=False)
        self.tied.weight = self.head.weight
        self.register_buffer("scale", torch.linspace(1, 2, 6))
        self.register_buffer("shift", torch.linspace(0, 1, 6), persistent=False)

    def forward(self, x, y):
        h = self.path(x * self.scale + self.shift + torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
        for block in self.blocks:
            h = block(h)
        z = self.head(h) + self.tied(h)
        return F.mse_loss(z, y), {"tokens": (y == y).all(-1).sum(), "parts": [z.abs().mean(), 3],
                                  "range": Range(z.min(), z.max())}

    @staticmethod
    def arguments(rows):
        return torch.randn(rows, 6), torch.randn(rows, 6)

    rows = torch.export.Dim("rows", min=2, max=64)
    dynamic_shapes = ({0: rows}, {0: rows})


class Gpt(nn.Module):
    """Causal attention, a tied head, tables made in no_grad, writes through a view."""

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attn, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.fc, self.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.heads = heads

        def forward(self, x):
            b, t, w = x.shape
            q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2)
                       for z in self.attn(self.ln1(x)).split(w, dim=-1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).contiguous().view(b, t, w))
            return x + self.proj(F.gelu(self.fc(self.ln2(x))))

    def __init__(self, vocab=13, width=16, heads=4, layers=4, block=8):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(block, width)
        self.h = nn.ModuleList([self.Block(width, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens, labels):
        with torch.no_grad():
            fade = torch.ones(tokens.shape[1])
            fade[1:3] *= 0.5
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1])) * fade[:, None]
        for block in self.h:
            x = block(x)
        logits = self.head(self.ln(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    @staticmethod
    def arguments(rows):
        return torch.randint(13, (rows, 8)), torch.randint(13, (rows, 8))

    dynamic_shapes = None


class ResNet(nn.Module):
    """Batch statistics, in-place activations, pooling, a strided shortcut."""

    class Block(nn.Module):
        def __init__(self, into, out, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
            self.bn1, self.bn2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
            self.short = nn.Conv2d(into, out, 1, stride) if stride != 1 or into != out else None

        def forward(self, x):
            y = F.relu(self.bn1(self.conv1(x)), inplace=True)
            y = self.bn2(self.conv2(y))
            y += x if self.short is None else self.short(x)
            return F.relu_(y)

    def __init__(self, classes=5):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.layers = nn.Sequential(self.Block(6, 6, 1), self.Block(6, 8, 2), self.Block(8, 8, 1))
        self.fc = nn.Linear(8, classes)

    def forward(self, images, classes):
        x = F.max_pool2d(F.relu(self.bn(self.stem(images))), 2)
        x = F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1)
        return F.cross_entropy(self.fc(x), classes)

    @staticmethod
    def arguments(rows):
        return torch.randn(rows, 3, 12, 12), torch.randint(5, (rows,))

    dynamic_shapes = None


class Norms(nn.Module):
    """Running statistics of channels of samples, and of a whole batch with a momentum of its own."""

    def __init__(self, width=8):
        super().__init__()
        self.fc = nn.Linear(6, width)
        self.batch = nn.BatchNorm1d(width, momentum=0.3)
        self.instance = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(width, 3))

    def forward(self, x, y):
        h = F.relu(self.batch(self.fc(x)))
        return F.smooth_l1_loss(self.head(self.instance(h.view(-1, 4, 2)).flatten(1)), y)

    @staticmethod
    def arguments(rows):
        return torch.randn(rows, 6), torch.randn(rows, 3)

    dynamic_shapes = None


class Spectral(nn.Module):
    """Buffers of which each is made of the other, written through an argument `out`."""

    def __init__(self):
        super().__init__()
        self.fc = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x, y):
        return F.mse_loss(self.head(torch.tanh(self.fc(x))), y)

    arguments = Norms.arguments
    dynamic_shapes = None


class Decomposed(ResNet):
    """In the core operators of ATen: batch norms return their statistics."""


class Body(nn.Module):
    """Returns scores; the loss is written around it."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(),
                                        nn.Linear(8, 4))

        def forward(self, x):
            return self.layers(x)

    def __init__(self):
        super().__init__()
        self.body = self.Inner()

    def forward(self, x, y):
        return F.cross_entropy(self.body(x), y)

    @staticmethod
    def arguments(rows):
        return torch.randn(rows, 6), torch.randint(4, (rows,))

    dynamic_shapes = None


CASES = {"mlp": Mlp, "gpt": Gpt, "resnet": ResNet, "body": Body, "norms": Norms, "spectral": Spectral,
         "decomposed": Decomposed}


def train(model, batches, out):
    """Descends on the same micro-batches in every step."""
    for step in range(STEPS):
        model.zero_grad()
        total = 0
        for args in batches:
            result = model(*args)
            loss = (result[0] if isinstance(result, tuple) else result) / len(batches)
            loss.backward()
            total = total + loss.detach()
        out[f"loss/{step}"] = total
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= RATE * p.grad
    out.update({"w/" + name: p.detach() for name, p in model.named_parameters()})
    out.update({"b/" + name: b for name, b in model.named_buffers()})


def export(model, args, path, dynamic_shapes=None, decomposed=False):
    program = torch.export.export(model, args, strict=False, dynamic_shapes=dynamic_shapes)
    if decomposed:
        program = program.run_decompositions()
    torch.export.save(program, path)


def double(args):
    return tuple(a.double() if a.is_floating_point() else a for a in args)


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    for number, (name, case) in enumerate(CASES.items()):
        torch.manual_seed(number)
        model = case().double().train()
        batches = [double(case.arguments(ROWS)) for _ in range(MICRO_BATCHES)]
        exported, args = (model.body, batches[0][:1]) if name == "body" else (model, batches[0])
        export(exported, args, os.path.join(folder, name + ".pt2"), case.dynamic_shapes,
               name == "decomposed")
        out = {f"in/{k}/{i}": a for k, args in enumerate(batches) for i, a in enumerate(args)}
        out |= {"s/" + k: v.clone() for k, v in model.state_dict().items()}
        if name in ("resnet", "decomposed"):
            model.eval()
            export(model, batches[0], os.path.join(folder, name + "_eval.pt2"), None,
                   name == "decomposed")
            out["evaluated"] = model(*batches[0]).detach()
            model.train()
        train(model, batches, out)
        save_file({k: v.contiguous() for k, v in out.items()},
                  os.path.join(folder, name + ".safetensors"))


if __name__ == "__main__":
    main()
