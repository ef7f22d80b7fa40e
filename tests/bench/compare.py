"""Step times and peak memory of nnscaler beside PyTorch, alternating on one machine.

    tests/bench/run                       what `make bench` prints
    tests/bench/compare.py --preset tiny --threads 1 --rounds 6 --steps 100 --against eager

Each round runs ours, PyTorch and ours again in fresh processes; the second of ours against the
first is the control (what identical code differs by here). Ratios are of medians over a round;
printed are the median over rounds and the whole range. With --bf16 both run under autocast, beside
ours in float32 with MKL's matrix products.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BIN = os.environ.get("NNSCALER_BIN", os.path.join(ROOT, "build", "nnscaler"))
TORCH = os.path.join(HERE, "torch", "train.py")
WARM_UP = 3

PRESETS = {  # models of torch/gpt.py as presets of the recipe
    "tiny": ["preset=tiny", "micro_batch_size=4"],
    "baby": ["preset=baby", "dropout=0", "micro_batch_size=12"],
}
LLAMA = {  # those of torch/llama.py
    "llama-small": ["recipe=llama3", "preset=small", "micro_batch_size=12"],
}


CACHE = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
TEXT = os.path.join(CACHE, "nnscaler", "shakespeare.txt")  # both sides have its characters as tokens


def vocabulary():
    with open(TEXT, encoding="utf-8") as f:
        return str(len(set(f.read())))


def child(command, **keywords):
    """Runs a command; returns its stdout and stderr."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **keywords)
    out, err = process.communicate()
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {process.returncode}:\n{err.decode()[-3000:]}")
    return out.decode(), err.decode()


def isa():
    """The instruction set of our kernels."""
    return re.search(r"our kernels\s+(\w+)", child([BIN, "doctor"])[0])[1]


def train(recipe, steps, folder, changes):
    """Runs WARM_UP + steps steps of a recipe; returns the rows of its metrics that are steps."""
    metrics = os.path.join(folder, "metrics.jsonl")
    child([BIN, "run", recipe, f"data={TEXT}", f"max_train_steps={WARM_UP + steps}", "checkpoint.no_save=true",
           "max_val_steps=1", f"gen_savedir={folder}/gen", "--metrics", metrics, *changes], cwd=folder)
    with open(metrics) as f:
        return [row for row in map(json.loads, f) if "step_s" in row]


def ours(preset, threads, steps, extra=()):
    with tempfile.TemporaryDirectory() as folder:
        rows = train(os.path.join(HERE, "watched.lua"), steps, folder,
                     [*{**PRESETS, **LLAMA}[preset], f"cpu={folder}/cpu", f"threads={threads}",
                      "enable_progress_bar=false", *extra])
        with open(os.path.join(folder, "cpu")) as f:
            cpu = [float(line.split()[0]) for line in f][WARM_UP:]
    times = [r["step_s"] for r in rows[WARM_UP:]]
    return {"median": statistics.median(times), "cpu": statistics.median(cpu), "first": rows[0]["step_s"], "rss": max(r["rss_bytes"] for r in rows)}


def torch(preset, threads, steps, compiled, dropout=0.0, bf16=False):
    command = [sys.executable, TORCH, "--mode", "compile" if compiled else "eager", "--preset", preset,
               "--vocab", vocabulary(), "--threads", str(threads), "--steps", str(steps),
               "--warm-up", str(WARM_UP), "--clip", "1.0", "--dropout", str(dropout)] + (["--bf16"] if bf16 else [])
    row = json.loads(child(command)[0].strip().splitlines()[-1])
    return {"median": row["median_s"], "cpu": row["cpu_s"], "first": row["first_step_s"], "rss": row["peak_rss_mib"] * 2**20}


def spread(values):
    return f"{statistics.median(values):.3f}  [{min(values):.3f} … {max(values):.3f}]"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--preset", choices=[*PRESETS, *LLAMA], default="tiny")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--bf16", action="store_true", help="precision=bf16-mixed")
    p.add_argument("--against", choices=["eager", "compile"], default="eager")
    a = p.parse_args()
    plain = [f"dropout={a.dropout}"] if a.dropout else []
    extra = [*plain, "precision=bf16-mixed"] if a.bf16 else plain
    a_rows, b_rows, c_rows, wide = [], [], [], []
    for _ in range(a.rounds):
        a_rows.append(ours(a.preset, a.threads, a.steps, extra))
        b_rows.append(torch(a.preset, a.threads, a.steps, a.against == "compile", a.dropout, a.bf16))
        if a.bf16:
            wide.append(ours(a.preset, a.threads, a.steps, [*plain, "forbid_kernels=tiles"]))
        c_rows.append(ours(a.preset, a.threads, a.steps, extra))

    def ratio(key, rows=b_rows):
        return spread([(x[key] + z[key]) / 2 / y[key] for x, y, z in zip(a_rows, rows, c_rows)])

    def control(key):
        return spread([z[key] / x[key] for x, z in zip(a_rows, c_rows)])

    dropped = (f", dropout {a.dropout}" if a.dropout else "") + (", bf16-mixed" if a.bf16 else "")
    model = a.preset if a.preset in LLAMA else f"{a.preset} GPT"
    print(f"{model}{dropped}, {isa()}, {a.threads} thread(s), {a.rounds} rounds of {a.steps} steps, against PyTorch {a.against}")
    print(f"  step, ours         {statistics.median(x['median'] for x in a_rows) * 1e3:9.3f} ms")
    print(f"  step, PyTorch      {statistics.median(x['median'] for x in b_rows) * 1e3:9.3f} ms")
    print(f"  ours / PyTorch     {ratio('median')}")
    print(f"  control            {control('median')}")
    print(f"  CPU, ours/PyTorch  {ratio('cpu')}")
    print(f"  CPU, control       {control('cpu')}")
    if a.bf16:
        print(f"  beside float32 with MKL's products: step {ratio('median', wide)}")
        print(f"                                      CPU  {ratio('cpu', wide)}")
    print(f"  first step         {a_rows[0]['first']:.3f} s, PyTorch {b_rows[0]['first']:.3f} s")
    print(f"  peak resident      {a_rows[0]['rss'] / 2**20:.0f} MiB, PyTorch {b_rows[0]['rss'] / 2**20:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
