"""Host cost of an operator call, and start-up times, beside PyTorch's.

    tests/bench/host.py [--rounds 5]

An operator call is CPU time on 8×8 tensors (the least of many rounds; all without autograd), beside
it what LibTorch itself takes when C++ calls it, which both sides pay: "above it" compares the rest.
Start-up is wall time of the whole process, for a run to the start of its first step.
"""
import argparse
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BIN = os.environ.get("NNSCALER_BIN", os.path.join(ROOT, "build", "nnscaler"))

TORCH = """
import time, torch
torch.set_num_threads(1)
x, y = torch.full((8, 8), 0.5), torch.full((8, 8), 0.25)
add, mm, t = torch.add, torch.mm, torch.t
def run_add():
    for _ in range(1000): add(x, y)
def run_mm():
    for _ in range(1000): mm(x, y)
def run_t():
    for _ in range(1000): t(x)
with torch.no_grad():
    for name, run in (("add", run_add), ("mm", run_mm), ("t", run_t)):
        best = 1e9
        for _ in range(200):
            start = time.process_time()
            run()
            best = min(best, time.process_time() - start)
        print(name, best * 1e3)
"""


def measure(command):
    """Microseconds a call, by operator."""
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: float(value) for name, value in re.findall(r"^(\w+) ([\d.]+)$", out, re.M)}


def seconds(command, until=None):
    """Wall seconds of a process, or until it writes a line that contains a text."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    took = None
    for line in process.stdout:
        if until and until in line and took is None:
            took = time.perf_counter() - start
    process.wait()
    return took or time.perf_counter() - start


def floor(folder):
    """Builds the program that calls LibTorch from C++; returns its path."""
    torch = os.path.join(importlib.util.find_spec("torch").submodule_search_locations[0], "")
    program = os.path.join(folder, "operators")
    subprocess.run(["g++", "-O2", "-std=c++20", os.path.join(HERE, "operators.cpp"), f"-I{torch}include",
                    f"-L{torch}lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch}lib", "-o", program], check=True)
    return program


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=5)
    rounds = p.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        commands = [[BIN, os.path.join(HERE, "operators.lua")], [sys.executable, "-c", TORCH], [floor(folder)]]
        rows = [[measure(command) for command in commands] for _ in range(rounds)]
    for name in ("add", "mm", "t"):
        a, b, c = (min(row[k][name] for row in rows) for k in range(3))
        print(f"{name:4} ours {a:6.3f} us, PyTorch {b:6.3f} us, ratio {a / b:.2f}; "
              f"LibTorch {c:6.3f} us, above it {(a - c) / (b - c):.2f}")
    version = [seconds([BIN, "version"]) for _ in range(2 * rounds)]
    print(f"nnscaler version              {statistics.median(version) * 1e3:.0f} ms (least {min(version) * 1e3:.0f})")
    with tempfile.TemporaryDirectory() as folder:
        run = [BIN, "run", os.path.join(ROOT, "recipes", "nanogpt.lua"), "preset=baby", "dropout=0", "max_train_steps=1",
               "micro_batch_size=1", "max_val_steps=1", "threads=1", "checkpoint.no_save=true", f"gen_savedir={folder}"]
        first = [seconds(run, "Training...") for _ in range(rounds)]
    print(f"baby run to its first step    {statistics.median(first):.2f} s (least {min(first):.2f})")
    torch = [seconds([sys.executable, "-c", "import torch"]) for _ in range(rounds)]
    print(f"import torch                  {statistics.median(torch):.2f} s (least {min(torch):.2f})")


main()
