"""Step times on two ranks beside PyTorch's, alternating on one machine.

    tests/bench/ranks.py --preset tiny --policy dp --rounds 5 --steps 100

dp is compared with DDP, fsdp with FSDP2, pp with 1F1B of torch.distributed.pipelining (4
micro-batches); tp has no counterpart there. All on one thread a rank, PyTorch over Gloo, ours over
the back end of the launcher. Each round runs ours, PyTorch and ours again; the second of ours
against the first is the control. Ratios are of medians over a round.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

from compare import PRESETS, ROOT, TORCH, WARM_UP, child, spread, train, vocabulary

BATCH = {"tiny": 4, "baby": 12}  # samples of a step, all ranks together
RIVALS = {"dp": "ddp", "fsdp": "fsdp", "pp": "pp", "tp": None}


def ours(preset, policy, steps, backend):
    batch = BATCH[preset]
    micro = batch // 4 if policy == "pp" else batch if policy == "tp" else batch // 2
    changes = [c for c in PRESETS[preset] if not c.startswith("micro_batch_size")]
    with tempfile.TemporaryDirectory() as folder:
        rows = train(os.path.join(ROOT, "recipes", "nanogpt.lua"), steps, folder,
                     [*changes, f"micro_batch_size={micro}", f"global_batch_size={batch}",
                      f"pas_policy={policy}", "threads=1", f"comm.backend={backend}", "-n", "2"])
    return statistics.median([r["step_s"] for r in rows][WARM_UP:])


def torch(preset, policy, steps):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    command = [os.path.join(os.path.dirname(sys.executable), "torchrun"), "--standalone", "--nproc-per-node", "2",
               TORCH, "--mode", RIVALS[policy], "--preset", preset, "--vocab", vocabulary(), "--threads", "1",
               "--steps", str(steps), "--warm-up", str(WARM_UP)]
    out, _ = child(command, env=environment)
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return statistics.median(r["median_s"] for r in rows)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--preset", choices=PRESETS, default="tiny")
    p.add_argument("--policy", choices=RIVALS, default="dp")
    p.add_argument("--backend", choices=["mpi", "gloo", "local"], default="mpi")
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    first, rival, second = [], [], []
    for _ in range(a.rounds):
        first.append(ours(a.preset, a.policy, a.steps, a.backend))
        if RIVALS[a.policy]:
            rival.append(torch(a.preset, a.policy, a.steps))
        second.append(ours(a.preset, a.policy, a.steps, a.backend))
    print(f"{a.preset} GPT, {a.policy} on 2 ranks over {a.backend}, {a.rounds} rounds of {a.steps} steps")
    print(f"  step, ours         {statistics.median(first) * 1e3:9.3f} ms")
    if rival:
        print(f"  step, PyTorch      {statistics.median(rival) * 1e3:9.3f} ms  ({RIVALS[a.policy]})")
        print(f"  ours / PyTorch     {spread([(x + z) / 2 / y for x, y, z in zip(first, rival, second)])}")
    print(f"  control            {spread([z / x for x, z in zip(first, second)])}", flush=True)


if __name__ == "__main__":
    main()
