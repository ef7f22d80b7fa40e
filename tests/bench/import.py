"""Models of PyTorch in its eager mode beside the same ones imported from .pt2, alternating.

    tests/bench/import.py --steps 10 --rounds 20 [NAME …]      resnet50 gpt2 llama unet

Prints what the import takes beyond reading weights, and the ratio of the CPU seconds of a step (one
thread, forward, backward and plain descent), with PyTorch against itself as the control. Ours starts
anew in each round; PyTorch's process, `--child NAME FOLDER`, lives on and starts from the first weights.
Needs torch, transformers and torchvision.
"""
import argparse
import copy
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BIN = os.environ.get("NNSCALER_BIN", os.path.join(ROOT, "build", "nnscaler"))
WARM_UP = 3


class Text(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        logits = self.model(input_ids=x, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


class Images(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return F.cross_entropy(self.model(x), y)


def resnet50():
    import torchvision.models
    return (Images(torchvision.models.resnet50(num_classes=10)),
            (torch.randn(4, 3, 96, 96), torch.randint(10, (4,))))


def gpt2():
    import transformers
    config = transformers.GPT2Config(vocab_size=1024, n_embd=256, n_layer=4, n_head=8, n_positions=128,
                                     resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    return Text(transformers.GPT2LMHeadModel(config)), ids()


def llama():
    import transformers
    config = transformers.LlamaConfig(vocab_size=1024, hidden_size=256, num_hidden_layers=4,
                                      num_attention_heads=8, num_key_value_heads=4,
                                      intermediate_size=704, max_position_embeddings=128)
    return Text(transformers.LlamaForCausalLM(config)), ids()


def ids():
    return torch.randint(1024, (4, 128)), torch.randint(1024, (4, 128))


def unet():
    path = os.path.join(ROOT, "tests/equivalence/pytorch/models.py")
    spec = importlib.util.spec_from_file_location("models", path)
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)

    class Noise(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = models.UNet(width=32)

        def forward(self, x, y):
            return self.model(x, y, x[:, 0, 0, 0])

    return Noise(), (torch.randn(8, 3, 32, 32), torch.randn(8, 3, 32, 32))


MODELS = {"resnet50": resnet50, "gpt2": gpt2, "llama": llama, "unet": unet}


def make(name):
    torch.manual_seed(0)
    return MODELS[name]()


def export(name, folder):
    model, args = make(name)
    start = time.time()
    program = torch.export.export(model.train(), args, strict=False)
    torch.export.save(program, os.path.join(folder, name + ".pt2"))
    save_file({str(i): a for i, a in enumerate(args)}, os.path.join(folder, name + ".safetensors"))
    return time.time() - start


def eager(name, folder, steps):
    """A round for each line that comes in."""
    torch.set_num_threads(1)
    model, _ = make(name)
    start = copy.deepcopy(model.state_dict())
    stored = load_file(os.path.join(folder, name + ".safetensors"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in sys.stdin:
        model.load_state_dict(start)
        cpu = []
        for _ in range(WARM_UP + steps):
            began = time.process_time()
            optimizer.zero_grad()
            loss = model(stored["0"], stored["1"])
            loss.backward()
            optimizer.step()
            loss.item()
            cpu.append(time.process_time() - began)
        print(json.dumps({"cpu": statistics.median(cpu[WARM_UP:]), "loss": loss.item()}), flush=True)


class Eager:
    """PyTorch's process."""

    def __init__(self, name, folder, steps):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--steps", str(steps), "--child", name, folder], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        sys.exit("PyTorch's process has ended")

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def run(command):
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}"[-3000:])
    return done.stdout


def ours(name, folder, steps):
    with tempfile.TemporaryDirectory() as own:
        run([BIN, "run", os.path.join(HERE, "import.lua"), f"exported={folder}/{name}", f"cpu={own}/cpu",
             f"opened={own}/opened", "threads=1", f"max_train_steps={WARM_UP + steps}", f"metrics={own}/m.jsonl",
             "checkpoint.no_save=true", "enable_progress_bar=false", f"gen_savedir={own}/gen"])
        with open(f"{own}/cpu") as cpu, open(f"{own}/opened") as opened, open(f"{own}/m.jsonl") as rows:
            times = [float(line.split()[0]) for line in cpu][WARM_UP:]
            loss = [json.loads(row)["train_loss"] for row in rows][-1]
            return {"cpu": statistics.median(times), "opened": float(opened.read()), "loss": loss}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--child", nargs=2)
    p.add_argument("names", nargs="*", metavar="NAME")
    a = p.parse_args()
    if a.child:
        eager(*a.child, a.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in a.names or MODELS:
            export(name, folder)
            rows, pytorch = [], Eager(name, folder, a.steps)
            for _ in range(a.rounds):
                mine, theirs, again = ours(name, folder, a.steps), pytorch.round(), pytorch.round()
                if abs(mine["loss"] / theirs["loss"] - 1) > 1e-3:
                    sys.exit(f"{name}: a loss of {mine['loss']}, PyTorch's is {theirs['loss']}")
                rows.append((mine, theirs, again))
            pytorch.end()
            print(f"{name}: import {statistics.median(m['opened'] for m, _, _ in rows):.3f} s; step "
                  f"{statistics.median(m['cpu'] for m, _, _ in rows) * 1e3:.1f} ms, PyTorch "
                  f"{statistics.median(t['cpu'] for _, t, _ in rows) * 1e3:.1f} ms; ratio "
                  f"{told(m['cpu'] / t['cpu'] for m, t, _ in rows)}, control "
                  f"{told(g['cpu'] / t['cpu'] for _, t, g in rows)} over {len(rows)} rounds of {a.steps} "
                  "steps", flush=True)


def told(ratios):
    ratios = list(ratios)
    return f"{statistics.median(ratios):.3f} [{min(ratios):.3f} … {max(ratios):.3f}]"


if __name__ == "__main__":
    main()
