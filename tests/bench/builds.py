#!/usr/bin/env python3
"""CPU seconds of a step, the most bytes that tensors take in it and resident peak under two builds,
in turns: what a change costs. Prints ratios within each round, later / earlier: their median over
rounds and the whole range. Seconds are those of the median step, bytes those of the largest. All
ranks are threads of one process, so the figures are of all together.

    builds.py EARLIER_BINARY [--later BINARY] [--preset tiny] [--ranks 1] [--steps 20] [--rounds 20] [KEY=VALUE …]"""
import argparse
import json
import os
import statistics
import tempfile

from compare import HERE, BIN, PRESETS, TEXT, WARM_UP, child, spread


def measure(binary, a):
    """Median CPU seconds of a step, bytes of tensors and resident peak."""
    with tempfile.TemporaryDirectory() as folder:
        child([binary, "run", os.path.join(HERE, "watched.lua"), *(["-n", str(a.ranks)] if a.ranks > 1 else []),
               f"data={TEXT}", f"max_train_steps={WARM_UP + a.steps}", "checkpoint.no_save=true",
               "max_val_steps=1", f"gen_savedir={folder}/gen", "enable_progress_bar=false", "comm.backend=local",
               f"threads={a.threads}", f"cpu={folder}/cpu", "--metrics", f"{folder}/metrics.jsonl",
               *PRESETS[a.preset], *a.changes], cwd=folder)
        with open(os.path.join(folder, "cpu")) as f:
            rows = [line.split() for line in f][a.ranks * WARM_UP:]
        with open(os.path.join(folder, "metrics.jsonl")) as f:
            peak = max(row["rss_bytes"] for row in map(json.loads, f) if "rss_bytes" in row)
        return statistics.median(float(s) for s, _ in rows), max(int(b) for _, b in rows), peak


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("earlier")
    p.add_argument("--later", default=BIN)
    p.add_argument("--preset", choices=PRESETS, default="tiny")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    a = p.parse_intermixed_args()
    rows = [(measure(a.earlier, a), measure(a.later, a), measure(a.earlier, a)) for _ in range(a.rounds)]
    print(f"{a.preset} GPT, {a.ranks} rank(s), {' '.join(a.changes)}: {a.rounds} rounds of {a.steps} steps")
    for of, what in enumerate(["CPU of a step", "bytes of tensors", "resident peak"]):
        print(f"  {what}, later / earlier {spread([2 * y[of] / (x[of] + z[of]) for x, y, z in rows])}")
        print(f"  {what}, control         {spread([z[of] / x[of] for x, _, z in rows])}", flush=True)


if __name__ == "__main__":
    main()
