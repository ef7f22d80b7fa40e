"""Writes what PyTorch's optimizers make of fixed weights and gradients: optimizers.safetensors with
the start (w0/NAME), the gradients of each step (g/STEP/NAME) and the ends (KIND/NAME)."""
import sys

import torch
from safetensors.torch import save_file

SHAPES = {'wide': (4, 6), 'tall': (7, 3), 'vector': (5,), 'stack': (2, 3, 4)}
STEPS = 6
KINDS = {
    'adamw': lambda p: torch.optim.AdamW(p, lr=0.02, betas=(0.8, 0.95), weight_decay=0.3),
    'adam': lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.1),
    'sgd': lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.05),
    'adafactor': lambda p: torch.optim.Adafactor(p),
    'adafactor_set': lambda p: torch.optim.Adafactor(p, lr=0.3, beta2_decay=-0.5, eps=(1e-6, 1e-2),
                                                     d=1.5, weight_decay=0.1),
    'muon': lambda p: torch.optim.Muon(p),
    'muon_set': lambda p: torch.optim.Muon(p, lr=0.05, weight_decay=0.2, momentum=0.8,
                                           nesterov=False, ns_steps=3,
                                           adjust_lr_fn='match_rms_adamw'),
}

torch.manual_seed(3)
start = {n: torch.randn(*s, dtype=torch.float64) for n, s in SHAPES.items()}
gradients = [{n: torch.randn(*s, dtype=torch.float64) for n, s in SHAPES.items()}
             for _ in range(STEPS)]
out = {f'w0/{n}': t.clone() for n, t in start.items()}
for k, g in enumerate(gradients):
    out.update({f'g/{k + 1}/{n}': t.clone() for n, t in g.items()})
for kind, make in KINDS.items():
    names = [n for n in SHAPES if len(SHAPES[n]) == 2 or not kind.startswith('muon')]
    weights = {n: start[n].clone().requires_grad_() for n in names}
    optimizer = make(list(weights.values()))
    for g in gradients:
        for n, w in weights.items():
            w.grad = g[n].clone()
        optimizer.step()
    out.update({f'{kind}/{n}': w.detach().clone() for n, w in weights.items()})
save_file(out, sys.argv[1] + '/optimizers.safetensors')
