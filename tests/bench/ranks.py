"""Step times on two ranks beside PyTorch's, alternating on one machine.

    tests/bench/ranks.py --preset tiny --policy dp --rounds 5 --steps 100

dp is compared with DDP, fsdp with FSDP2, pp with 1F1B of torch.distributed.pipelining (4
micro-batches), zero1 (dp with use_zero=1) with our dp; tp has no counterpart there. All on one thread a rank, PyTorch over Gloo, ours over
the back end of the launcher. Each round runs ours, PyTorch and ours again; the second of ours
against the first is the control. Ratios are of medians over a round; CPU seconds are those of both
ranks.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

from compare import HERE, PRESETS, TORCH, WARM_UP, child, isa, spread, train, vocabulary

BATCH = {"tiny": 4, "baby": 12}  # samples of a step, all ranks together
RIVALS = {"dp": "ddp", "fsdp": "fsdp", "pp": "pp", "tp": None, "zero1": "dp"}


def ours(preset, policy, steps, backend):
    batch = BATCH[preset]
    micro = batch // 4 if policy == "pp" else batch if policy == "tp" else batch // 2
    changes = [c for c in PRESETS[preset] if not c.startswith("micro_batch_size")]
    if policy == "zero1":
        policy = "dp"
        changes.append("compute_config.use_zero=1")
    with tempfile.TemporaryDirectory() as folder:
        rows = train(os.path.join(HERE, "watched.lua"), steps, folder,
                     [*changes, f"micro_batch_size={micro}", f"global_batch_size={batch}", f"cpu={folder}/cpu",
                      f"pas_policy={policy}", "threads=1", f"comm.backend={backend}", "-n", "2"])
        with open(os.path.join(folder, "cpu")) as f:  # a line of each rank a step
            cpu = [float(line.split()[0]) for line in f][2 * WARM_UP:]
    return {"median": statistics.median([r["step_s"] for r in rows][WARM_UP:]), "cpu": sum(cpu) / steps}


def torch(preset, policy, steps):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    command = [os.path.join(os.path.dirname(sys.executable), "torchrun"), "--standalone", "--nproc-per-node", "2",
               TORCH, "--mode", RIVALS[policy], "--preset", preset, "--vocab", vocabulary(), "--threads", "1",
               "--steps", str(steps), "--warm-up", str(WARM_UP)]
    out, _ = child(command, env=environment)
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {"median": statistics.median(r["median_s"] for r in rows), "cpu": sum(r["cpu_s"] for r in rows)}


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
        if a.policy == "zero1":
            rival.append(ours(a.preset, "dp", a.steps, a.backend))
        elif RIVALS[a.policy]:
            rival.append(torch(a.preset, a.policy, a.steps))
        second.append(ours(a.preset, a.policy, a.steps, a.backend))
    print(f"{a.preset} GPT, {a.policy} on 2 ranks over {a.backend}, {isa()}, {a.rounds} rounds of {a.steps} steps")
    print(f"  step, ours         {statistics.median(x['median'] for x in first) * 1e3:9.3f} ms")
    if rival:
        print(f"  step, rival        {statistics.median(x['median'] for x in rival) * 1e3:9.3f} ms  ({RIVALS[a.policy]})")
    for key, name in [("median", "step"), ("cpu", "CPU ")]:
        if rival:
            print(f"  {name}, ours / rival {spread([(x[key] + z[key]) / 2 / y[key] for x, y, z in zip(first, rival, second)])}")
        print(f"  {name}, control      {spread([z[key] / x[key] for x, z in zip(first, second)])}", flush=True)


if __name__ == "__main__":
    main()
