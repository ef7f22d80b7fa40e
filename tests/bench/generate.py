"""Speed of sampling beside PyTorch, alternating on one machine.

    tests/bench/generate.py --preset baby --steps 200 --rounds 5 [--against whole]

Against a loop with kept keys and values, or against nanoGPT's, which reads the whole text for each
token. Each round runs ours, PyTorch and ours again in fresh processes; the second of ours against the
first is the control. Ratios are of tokens a second, more is faster.
"""
import argparse
import json
import os
import statistics
import sys

from compare import BIN, HERE, child, spread


def row(command):
    return json.loads(child(command)[0].strip().splitlines()[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--preset", choices=["tiny", "baby"], default="baby")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--steps", type=int, default=200, help="tokens to sample")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--against", choices=["cached", "whole"], default="cached")
    a = p.parse_args()
    tokens, vocab = str(a.steps), "65"
    ours = [BIN, os.path.join(HERE, "generate.lua"), a.preset, vocab, tokens, str(a.threads)]
    theirs = [sys.executable, os.path.join(HERE, "torch", "generate.py"), "--preset", a.preset, "--vocab", vocab,
              "--tokens", tokens, "--threads", str(a.threads), *(["--whole"] if a.against == "whole" else [])]
    rows = [(row(ours), row(theirs), row(ours)) for _ in range(a.rounds)]

    def ratio(key, f):
        return spread([f((x[key] + z[key]) / 2, y[key]) for x, y, z in rows])

    def control(key):
        return spread([z[key] / x[key] for x, _, z in rows])

    speed = [statistics.median(r[k]["tokens_per_s"] for r in rows) for k in (0, 1)]
    print(f"{a.preset} GPT, {tokens} tokens of one sequence, {a.threads} thread(s), {a.rounds} rounds, against "
          f"PyTorch {a.against}")
    print(f"  tokens/s, ours     {speed[0]:9.1f}")
    print(f"  tokens/s, PyTorch  {speed[1]:9.1f}")
    print(f"  ours / PyTorch     {ratio('tokens_per_s', lambda x, y: x / y)}")
    print(f"  control            {control('tokens_per_s')}")
    print(f"  CPU, PyTorch/ours  {ratio('cpu_s', lambda x, y: y / x)}")
    print(f"  CPU, control       {control('cpu_s')}", flush=True)


if __name__ == "__main__":
    main()
