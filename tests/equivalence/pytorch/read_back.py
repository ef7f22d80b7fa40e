"""Opens a checkpoint of ours with the safetensors library and compares it with the reference.

usage: read_back.py CHECKPOINT REFERENCE
Prints one line: number of tensors, and the largest relative difference (norm of the difference by
norm of the reference) of weights and moments. Does not need torch.
"""
import json
import os
import sys

import numpy
from safetensors.numpy import load_file


def main():
    folder, reference = sys.argv[1], load_file(sys.argv[2])
    model = load_file(os.path.join(folder, "model.safetensors"))
    optimizer = load_file(os.path.join(folder, "optimizer.safetensors"))
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    tied = {e["name"]: e["alias"] for e in manifest["tensors"] if "alias" in e}
    assert tied == {"lm_head.weight": "transformer.wte.weight"}, tied
    wanted = {k[2:]: v for k, v in reference.items() if k.startswith("w/")}
    assert sorted(model) == sorted(wanted), sorted(set(model) ^ set(wanted))
    ours = dict(model)
    ours.update(optimizer)
    names = {name: "w/" + name for name in model}
    for name in model:
        names[name + "/exp_avg"] = "m/" + name
        names[name + "/exp_avg_sq"] = "v/" + name
    assert sorted(ours) == sorted(names), sorted(set(ours) ^ set(names))
    worst = 0.0
    for name, key in names.items():
        if "c_attn.bias" in name:  # the key's share has no gradient: gpt_spec.lua looks at it
            continue
        a, b = ours[name].astype(numpy.float64), reference[key].astype(numpy.float64)
        assert ours[name].dtype == reference[key].dtype and a.shape == b.shape, name
        worst = max(worst, numpy.linalg.norm(a - b) / numpy.linalg.norm(b))
    print(f"{len(ours)} tensors, worst {worst:.3e}")


main()
