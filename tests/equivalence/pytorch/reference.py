"""Trains the GPT of reference.lua in PyTorch: the oracle of gpt_spec.lua.

usage: reference.py FOLDER
Writes start-DTYPE.safetensors (random weights, norms and biases too), batches.safetensors and
reference-DTYPE.safetensors (losses, gradient norms, final weights w/NAME, moments m/NAME and v/NAME);
reference-bf16-mixed.safetensors is that of float32 weights under bfloat16 autocast, reference-bf16
that of bfloat16 weights.
Nothing here is shared with our code but the names of the parameters.
"""
import math
import os
import sys

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

VOCAB, LAYERS, HEADS, WIDTH, BLOCK = 31, 2, 2, 16, 12
STEPS, ACCUMULATION, BATCH = 50, 3, 4
LR, MIN_LR, WARMUP, DECAY_STEPS, CLIP = 3e-3, 3e-4, 10, 40, 1.0
IGNORED = -100


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, HEADS, width // HEADS).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        # Spelled out, so that the fused kernel is compared with its definition.
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // HEADS)
        mask = torch.ones(time, time, dtype=torch.bool).tril()
        y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(WIDTH, 4 * WIDTH), "c_proj": nn.Linear(4 * WIDTH, WIDTH)})

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(VOCAB, WIDTH),
            "wpe": nn.Embedding(BLOCK, WIDTH),
            "h": nn.ModuleList(Block() for _ in range(LAYERS)),
            "ln_f": nn.LayerNorm(WIDTH),
        })

    def forward(self, x):
        t = self.transformer
        hidden = t["wte"](x) + t["wpe"](torch.arange(x.shape[1]))
        for block in t["h"]:
            hidden = block(hidden)
        return t["ln_f"](hidden) @ t["wte"].weight.T  # tied


def start_weights():
    generator = torch.Generator().manual_seed(1)
    out = {}
    for name, p in GPT().named_parameters():
        centre = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        out[name] = (centre + 0.2 * noise).float().double()  # the same numbers in both types
    return out


def batches():
    generator = torch.Generator().manual_seed(2)
    count = STEPS * ACCUMULATION
    tokens = torch.randint(VOCAB, (count, BATCH, BLOCK + 1), generator=generator)
    # Text with something to learn: each token is often the one before it plus one.
    follow = torch.rand(tokens.shape, generator=generator) < 0.7
    for i in range(1, BLOCK + 1):
        tokens[..., i] = torch.where(follow[..., i], (tokens[..., i - 1] + 1) % VOCAB, tokens[..., i])
    x, y = tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()
    share = torch.rand(count, 1, 1, generator=generator)  # uneven: a few labels or nearly all
    y[torch.rand(y.shape, generator=generator) < share] = IGNORED
    y[7] = IGNORED  # a micro-batch without any label
    return x, y


def learning_rate(step):
    if step < WARMUP:
        return LR * (step + 1) / (WARMUP + 1)
    if step >= DECAY_STEPS:
        return MIN_LR
    part = (step - WARMUP) / (DECAY_STEPS - WARMUP)
    return MIN_LR + 0.5 * (1 + math.cos(math.pi * part)) * (LR - MIN_LR)


def train(weights, x, y, dtype, autocast=False):
    model = GPT().to(dtype)
    model.load_state_dict({name: w.to(dtype) for name, w in weights.items()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        total, count = 0.0, 0
        for n in range(step * ACCUMULATION, (step + 1) * ACCUMULATION):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(model(x[n]).flatten(0, 1), y[n].flatten(),
                                       ignore_index=IGNORED, reduction="sum")
            loss.backward()
            total += loss.item()
            count += int((y[n] != IGNORED).sum())
        for p in model.parameters():
            p.grad /= count
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(total / count)
    out = {"losses": torch.tensor(losses, dtype=torch.float64),
           "gnorms": torch.tensor(norms, dtype=torch.float64)}
    for name, p in model.named_parameters():
        out["w/" + name] = p.detach()
        out["m/" + name] = optimizer.state[p]["exp_avg"]
        out["v/" + name] = optimizer.state[p]["exp_avg_sq"]
    return out


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    weights = start_weights()
    x, y = batches()
    save_file({"x": x, "y": y}, os.path.join(folder, "batches.safetensors"))
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        start = {k: w.to(dtype) for k, w in weights.items()}
        save_file(start, os.path.join(folder, f"start-{name}.safetensors"))
        save_file(train(weights, x, y, dtype),
                  os.path.join(folder, f"reference-{name}.safetensors"))
    save_file(train(weights, x, y, torch.float32, autocast=True),
              os.path.join(folder, "reference-bf16-mixed.safetensors"))
    save_file(train(weights, x, y, torch.bfloat16),
              os.path.join(folder, "reference-bf16.safetensors"))


main()
