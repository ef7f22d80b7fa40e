"""Loss and gradients of a LLaMA in PyTorch, float64: the oracle of llama_spec.lua.

usage: llama.py FOLDER
Writes one file a case, CASE.safetensors: weights w/NAME, gradients g/NAME, tokens x and y, loss.
Rotary embedding is written as a product of complex numbers and heads are grouped by index, so that
nothing is spelled as in our model.
"""
import os
import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

# name: (vocab, layers, heads, kv heads, width, hidden, head_dim, theta, tied, texts)
CASES = {
    "grouped": (19, 2, 4, 2, 16, 24, 4, 500000.0, False, (3, 8)),
    "one_kv_head_tied": (13, 1, 3, 1, 12, 20, 4, 10000.0, True, (2, 5)),
    "plain_wide_heads": (11, 2, 2, 2, 8, 12, 6, 100.0, False, (2, 7)),
}


def rotate(x, theta):  # [batch, time, heads, d]: pairs (i, i + d/2) are complex numbers
    half = x.shape[-1] // 2
    z = torch.complex(x[..., :half], x[..., half:])
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequency
    z = z * torch.polar(torch.ones_like(angle), angle)[None, :, None, :]
    return torch.cat([z.real, z.imag], -1)


def norm(x, weight):
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def attention(x, w, heads, kv_heads, d, theta):
    batch, time, _ = x.shape
    q = rotate((x @ w["q_proj.weight"].T).reshape(batch, time, heads, d), theta)
    k = rotate((x @ w["k_proj.weight"].T).reshape(batch, time, kv_heads, d), theta)
    v = (x @ w["v_proj.weight"].T).reshape(batch, time, kv_heads, d)
    out = []
    for h in range(heads):
        g = h // (heads // kv_heads)
        scores = torch.einsum("btd,bsd->bts", q[:, :, h], k[:, :, g]) / d**0.5
        scores = scores + torch.full((time, time), float("-inf"), dtype=x.dtype).triu(1)
        out.append(scores.softmax(-1) @ v[:, :, g])
    return torch.cat(out, -1) @ w["o_proj.weight"].T


def below(weights, prefix):
    return {k[len(prefix):]: v for k, v in weights.items() if k.startswith(prefix)}


def forward(w, x, y, case):
    vocab, layers, heads, kv_heads, width, hidden, d, theta, tied, _ = case
    h = w["model.embed_tokens.weight"][x]
    for i in range(layers):
        lw = below(w, f"model.layers.{i}.")
        h = h + attention(norm(h, lw["input_layernorm.weight"]), below(lw, "self_attn."), heads,
                          kv_heads, d, theta)
        n = norm(h, lw["post_attention_layernorm.weight"])
        gate, up = n @ lw["mlp.gate_proj.weight"].T, n @ lw["mlp.up_proj.weight"].T
        h = h + (gate / (1 + torch.exp(-gate)) * up) @ lw["mlp.down_proj.weight"].T
    out = w["model.embed_tokens.weight" if tied else "lm_head.weight"]
    logits = norm(h, w["model.norm.weight"]) @ out.T
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100)


def weights_of(case, generator):
    vocab, layers, heads, kv_heads, width, hidden, d, _, tied, _ = case
    shapes = {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)}
    if not tied:
        shapes["lm_head.weight"] = (vocab, width)
    for i in range(layers):
        p = f"model.layers.{i}."
        shapes |= {
            p + "input_layernorm.weight": (width,),
            p + "post_attention_layernorm.weight": (width,),
            p + "self_attn.q_proj.weight": (heads * d, width),
            p + "self_attn.k_proj.weight": (kv_heads * d, width),
            p + "self_attn.v_proj.weight": (kv_heads * d, width),
            p + "self_attn.o_proj.weight": (width, heads * d),
            p + "mlp.gate_proj.weight": (hidden, width),
            p + "mlp.up_proj.weight": (hidden, width),
            p + "mlp.down_proj.weight": (width, hidden),
        }
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.5
            for name, shape in shapes.items()}


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    for number, (name, case) in enumerate(CASES.items()):
        generator = torch.Generator().manual_seed(number)
        w = {k: v.requires_grad_() for k, v in weights_of(case, generator).items()}
        x = torch.randint(case[0], case[-1], generator=generator)
        y = torch.randint(case[0], case[-1], generator=generator)
        y[0, 1:3] = -100
        loss = forward(w, x, y, case)
        loss.backward()
        out = {"x": x, "y": y, "loss": loss.detach()}
        for key, value in w.items():
            out["w/" + key], out["g/" + key] = value.detach(), value.grad
        save_file(out, os.path.join(folder, name + ".safetensors"))


main()
