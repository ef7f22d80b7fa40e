"""Second starts of the baby GPT from written files, up to its first step, beyond what LibTorch
itself takes to load: CPU seconds of the process, all ranks of it together, and what was done anew.

    tests/bench/second_start.py [--rounds 5]
"""
import argparse
import os
import re
import statistics
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BIN = os.environ.get("NNSCALER_BIN", os.path.join(ROOT, "build", "nnscaler"))
PLANS = [
    ("dp", 1, ["pas_policy=dp"]),
    ("dp", 2, ["pas_policy=dp"]),
    ("fsdp", 2, ["pas_policy=fsdp"]),
    ("megatron", 2, ["pas_policy=megatron"]),
    ("pp", 2, ["pas_policy=pp", "grad_accumulation_steps=2"]),
]


def cpu(process):
    """User and system seconds of a process that runs."""
    with open(f"/proc/{process.pid}/stat", encoding="utf-8") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(arguments, ranks):
    """CPU seconds until a rank is ready for its first step, and what was done until then."""
    process = subprocess.Popen([BIN, *arguments], stderr=subprocess.PIPE, text=True, cwd=ROOT,
                               stdout=subprocess.DEVNULL,
                               env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    took, said = None, None
    for line in process.stderr:
        if "Program of training:" in line:
            said = line.split("Program of training:")[1].strip()
        if "specialised to training" in line:
            took = cpu(process)
            break
    if took is None or said is None:
        raise SystemExit(f"no start: {arguments}")
    process.kill()
    process.communicate()
    return took, said


def loading():
    """CPU seconds of a process that loads LibTorch and ends."""
    with tempfile.TemporaryDirectory() as folder:
        spec = os.path.join(folder, "load_spec.lua")
        with open(spec, "w", encoding="utf-8") as f:
            f.write("describe('LibTorch', function() it('loads', function()\n"
                    "  require 'nnscaler.tensor'\nend) end)\n")
        before = os.times()
        subprocess.run([BIN, "test", spec], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, cwd=ROOT)
        after = os.times()
    return after[2] + after[3] - before[2] - before[3]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    load = [loading() for _ in range(rounds)]
    print(f"LibTorch's loading: {statistics.median(load):.2f} s of CPU (least {min(load):.2f})")
    with tempfile.TemporaryDirectory() as folder:
        for policy, ranks, keys in PLANS:
            run = ["run", "recipes/nanogpt.lua", "preset=baby", "threads=1", "dropout=0",
                   "micro_batch_size=1", "checkpoint.no_save=true", "--log-level", "debug",
                   "stop_after_steps=1", "max_val_steps=1", "-n", str(ranks), "comm.backend=local",
                   f"gen_savedir={folder}/{policy}{ranks}", *keys]
            first, told = start(run, ranks)
            again = [start(run, ranks) for _ in range(rounds)]
            took = [t - statistics.median(load) for t, _ in again]
            counts = {re.sub(r"\d+ files", "files", said) for _, said in again}
            print(f"{policy:9} {ranks} rank(s): {statistics.median(took):.2f} s beyond loading "
                  f"(least {min(took):.2f}), "
                  f"the first start {first - statistics.median(load):.2f} s\n"
                  f"    first {told}\n    again {again[-1][1]} ({len(counts)} kind(s))")


if __name__ == "__main__":
    main()
