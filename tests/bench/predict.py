#!/usr/bin/env python3
"""The predicted step beside the measured one, for plans on ranks of one thread. The calls of each plan are
measured in a run of their own (nnscaler profile); the prediction is the simulator's, with links and the
machine's figures of the same profile; the measured step is the median over fresh starts of the median
step. Prints a line a plan, then the mean and the worst error, and how far starts differ.

With --processor both are processor seconds of a rank, which others on the machine hardly lengthen: predicted is what
the programs, sums and updates take without waiting, measured what the steps of another start of `nnscaler profile`
take of rank 0's thread.

    predict.py [--ranks 2] [--starts 5] [--steps 12] [--seconds 6] [--processor] [--only TEXT]"""
import argparse
import json
import os
import re
import statistics
import tempfile

from compare import BIN, HERE, child

GPT = [os.path.join(HERE, "../../recipes/nanogpt.lua"), "preset=cpu", "layers=4", "width=256", "heads=4",
       "block=128", "micro_batch_size=8"]
MLP = [os.path.join(HERE, "predict.lua"), "kind=mlp", "micro_batch_size=128"]
CNN = [os.path.join(HERE, "predict.lua"), "kind=cnn", "micro_batch_size=16"]
PLANS = [
    ["pas_policy=dp"], ["pas_policy=dp", "grad_accumulation_steps=2"], ["pas_policy=fsdp"],
    ["pas_policy=dp", "compute_config.use_zero=1"], ["pas_policy=data", "compute_config.plan_ngpus=2"],
    ["pas_policy=pp", "grad_accumulation_steps=4"],
    ["pas_policy=pp", "grad_accumulation_steps=4", "pas_config.pipeline_scheduler=gpipe"],
]
CELLS = ([("gpt", GPT, p) for p in PLANS + [["pas_policy=tp"], ["pas_policy=megatron"]]]
         + [("mlp", MLP, p) for p in PLANS + [["pas_policy=tp"]]] + [("cnn", CNN, p) for p in PLANS])


def batch_of(changes, ranks):
    """Samples of a step: `plan` compares plans at as many as all ranks would take one by one."""
    given = dict(change.split("=", 1) for change in changes if "=" in change)
    units = ranks if given["pas_policy"] in ("dp", "fsdp") else 1
    return units * int(given["micro_batch_size"]) * int(given.get("grad_accumulation_steps", 1))


def seconds(text):
    number, unit = text.split()
    return float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit]


def predicted(job, profile, a):
    """Seconds of a step by `nnscaler plan`."""
    text, _ = child([BIN, "plan", *job, "--world", str(a.ranks), "--hardware", profile])
    figures = re.search(r"predicted step (.*?): parts .*? \(of a micro-batch forward (.*?), backward (.*?), of these "
                        r"communication .*?\), sums of gradients (.*?), updates (.*)", text).groups()
    step, forward, backward, sums, updates = map(seconds, figures)
    if not a.processor:
        return step
    stages, micro = re.search(r"; (\d+) stages, schedule \w+, (\d+) micro-batches", text).groups()
    return int(micro) * (forward + backward) / int(stages) + sums + updates


def measured(job, a):
    """Seconds of the median step of a fresh start, or processor seconds of a rank's step."""
    if a.processor:
        with tempfile.TemporaryDirectory() as folder:
            text, _ = child([BIN, "profile", *job, "-n", str(a.ranks), "--seconds", str(a.seconds), "--out",
                             f"{folder}/p.json"])
            return float(re.search(r"([\d.e-]+) s of the processor", text).group(1))
    with tempfile.TemporaryDirectory() as folder:
        child([BIN, "run", *job, "-n", str(a.ranks), f"max_train_steps={a.steps}", "checkpoint.no_save=true",
               f"gen_savedir={folder}/gen", "--metrics", f"{folder}/m.jsonl", "--log-level", "warning"])
        with open(f"{folder}/m.jsonl") as f:
            rows = [json.loads(line) for line in f]
        return statistics.median([r["train_wall"] for r in rows if "train_wall" in r][3:])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--starts", type=int, default=5)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--seconds", type=int, default=6)
    p.add_argument("--processor", action="store_true")
    p.add_argument("--only", default="")
    a = p.parse_args()
    errors, spreads = [], []
    for name, base, plan in CELLS:
        label = f"{name} {' '.join(c.split('.')[-1] for c in plan)}"
        if a.only not in label:
            continue
        with tempfile.TemporaryDirectory() as folder:
            job = [*base, *plan, f"global_batch_size={batch_of([*base, *plan], a.ranks)}", "threads=1",
                   f"gen_savedir={folder}/gen", "enable_progress_bar=false"]
            child([BIN, "profile", *job, "-n", str(a.ranks), "--seconds", str(a.seconds), "--out", f"{folder}/p.json"])
            want = predicted(job, f"{folder}/p.json", a)
            walls = [measured(job, a) for _ in range(a.starts)]
        got = statistics.median(walls)
        spread = (max(walls) - min(walls)) / got
        errors.append(abs(want / got - 1))
        spreads.append(spread)
        print(f"{label:60} predicted {1e3 * want:8.1f} ms, measured {1e3 * got:8.1f} ms, {100 * (want / got - 1):+6.1f} %,"
              f" starts within {100 * spread:.1f} %", flush=True)
    if not errors:
        p.error(f"no plan's name contains '{a.only}'")
    print(f"{len(errors)} plans: mean error {100 * statistics.mean(errors):.1f} %, worst {100 * max(errors):.1f} %; "
          f"starts within {100 * statistics.median(spreads):.1f} % (median)")


if __name__ == "__main__":
    main()
