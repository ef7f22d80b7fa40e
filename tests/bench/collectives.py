"""Host cost of an all-reduce on two ranks: our communicator beside bare Open MPI and Gloo.

    tests/bench/collectives.py --rounds 3

The bare programs are all_reduce.c and torch/all_reduce.py. Rounds alternate; printed are medians over rounds of
the median call, and the ratio of paired rounds.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from compare import BIN, HERE, child, spread

SIZES = [1024, 1 << 20, 64 << 20]
MPIRUN = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-np", "2"]
TORCHRUN = [os.path.join(os.path.dirname(sys.executable), "torchrun"), "--standalone", "--nproc-per-node", "2"]


def medians(command):
    out, _ = child(command, env=dict(os.environ, OMP_NUM_THREADS="1"))
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {r["bytes"]: r["median_us"] for r in rows}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--backends", nargs="+", choices=["mpi", "gloo"], default=["mpi", "gloo"])
    a = p.parse_args()
    script, sizes = os.path.join(HERE, "all_reduce.lua"), [str(size) for size in SIZES]
    with tempfile.TemporaryDirectory() as folder:
        bare = os.path.join(folder, "all_reduce")
        subprocess.run(["mpicc", "-O2", os.path.join(HERE, "all_reduce.c"), "-o", bare], check=True)
        pairs = {
            "mpi": ([*MPIRUN, BIN, script], [*MPIRUN, bare, *sizes]),
            "gloo": ([*TORCHRUN, "--no-python", BIN, script],
                     [*TORCHRUN, os.path.join(HERE, "torch", "all_reduce.py"), *sizes]),
        }
        for name in a.backends:
            ours, theirs = pairs[name]
            rows = [(medians(ours), medians(theirs)) for _ in range(a.rounds)]
            for size in SIZES:
                mine, bare_us = [r[0][size] for r in rows], [r[1][size] for r in rows]
                print(f"{name:5} all-reduce of {size:>9} bytes: ours {statistics.median(mine):10.1f} µs, "
                      f"bare {statistics.median(bare_us):10.1f} µs, ratio {spread([x / y for x, y in zip(mine, bare_us)])}",
                      flush=True)


if __name__ == "__main__":
    main()
