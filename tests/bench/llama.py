"""Mini Llama beside the transformers model in PyTorch's eager mode, from the same weights on the same
batches, alternating; on two ranks beside DDP.

    tests/bench/llama.py --ranks 1 --rounds 10 --steps 5
    tests/bench/llama.py --ranks 2 --rounds 10 --steps 5

Each round runs ours, PyTorch and ours again; the second of ours against the first is the control. A
step is forward, backward and AdamW, one thread a rank; its CPU seconds are those of all ranks. Memory
is what a rank has at most, and that without what was resident before the model. Ours makes the
logits of `--chunk` tokens at a time. Needs torch and transformers; `--child FOLDER` is what the
rounds start.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.environ.get("NNSCALER_BIN", os.path.join(HERE, "..", "..", "build", "nnscaler"))
WARM_UP = 2


def kilobytes(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def prepare(folder, vocabulary, batch, length, ranks):
    import torch
    import transformers
    from safetensors.torch import save_file
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=vocabulary, hidden_size=256, intermediate_size=704,
                                      num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
                                      max_position_embeddings=length, rms_norm_eps=1e-5,
                                      tie_word_embeddings=False)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    ids = torch.randint(vocabulary, (ranks, batch, length + 1))
    save_file({"x": ids[..., :-1].contiguous(), "y": ids[..., 1:].contiguous()}, f"{folder}/batches.bin")


def child(folder, steps):
    import torch
    import transformers
    from safetensors.torch import load_file
    from torch.nn import functional as F
    torch.set_num_threads(1)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    stored = load_file(f"{folder}/batches.bin")
    x, y = stored["x"][rank], stored["y"][rank]
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    before = kilobytes("VmRSS")
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    cpu, wall = [], []
    for _ in range(WARM_UP + steps):
        start, clock = time.process_time(), time.time()
        optimizer.zero_grad()
        logits = model(input_ids=x, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        loss.item()
        cpu.append(time.process_time() - start)
        wall.append(time.time() - clock)
    # One write: ranks share the pipe, and torchrun takes their buffers away.
    sys.stdout.write(json.dumps({
        "cpu": statistics.median(cpu[WARM_UP:]), "wall": statistics.median(wall[WARM_UP:]),
        "loss": loss.item(), "before": before, "most": kilobytes("VmHWM")}) + "\n")


def run(command):
    done = subprocess.run(command, text=True, capture_output=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}"[-3000:])
    return done.stdout


def summed(rows):
    return {"cpu": sum(r["cpu"] for r in rows), "wall": max(r["wall"] for r in rows),
            "loss": statistics.mean(r["loss"] for r in rows), "most": max(r["most"] for r in rows),
            "own": max(r["most"] - r["before"] for r in rows)}


def theirs(folder, steps, ranks):
    start = [sys.executable]
    if ranks > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    out = run([*start, os.path.abspath(__file__), "--steps", str(steps), "--child", folder])
    return summed([json.loads(line) for line in out.splitlines() if line.startswith("{")])


def ours(folder, steps, ranks, chunk):
    with tempfile.TemporaryDirectory() as own:
        run([BIN, "run", os.path.join(HERE, "llama.lua"), "-n", str(ranks), f"folder={folder}", f"chunk={chunk}",
             f"cpu={own}/cpu", f"memory={own}/memory", "threads=1", f"max_train_steps={WARM_UP + steps}",
             f"metrics={own}/m.jsonl", "checkpoint.no_save=true", "enable_progress_bar=false",
             f"gen_savedir={own}/gen", f"compute_config.runtime_ngpus={ranks}"])
        with open(f"{own}/cpu") as lines:
            cpu = [float(line.split()[0]) for line in lines][WARM_UP * ranks:]
        with open(f"{own}/memory") as lines:
            memory = [[int(n) for n in line.split()] for line in lines]
        with open(f"{own}/m.jsonl") as lines:
            rows = [json.loads(line) for line in lines]
        wall = statistics.median([r["step_s"] for r in rows if "step_s" in r][WARM_UP:])
        loss = [r["train_loss"] for r in rows if "train_loss" in r][-1]
        return summed([{"cpu": statistics.median(cpu), "wall": wall, "loss": loss, "before": b, "most": m}
                       for b, m in memory])


def spread(ratios):
    return f"{statistics.median(ratios):.3f} [{min(ratios):.3f} … {max(ratios):.3f}]"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--vocabulary", type=int, default=8192)
    p.add_argument("--batch", type=int, default=4, help="samples of a rank")
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--chunk", type=int, default=256)
    p.add_argument("--child")
    a = p.parse_args()
    if a.child:
        child(a.child, a.steps)
        return
    first, rival, second = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder, a.vocabulary, a.batch, a.length, a.ranks)
        for _ in range(a.rounds):
            first.append(ours(folder, a.steps, a.ranks, a.chunk))
            rival.append(theirs(folder, a.steps, a.ranks))
            second.append(ours(folder, a.steps, a.ranks, a.chunk))
            if abs(first[-1]["loss"] / rival[-1]["loss"] - 1) > 1e-3:
                sys.exit(f"a loss of {first[-1]['loss']}, PyTorch's is {rival[-1]['loss']}")
    print(f"mini Llama, {a.ranks} rank(s), vocabulary {a.vocabulary}, {a.batch} × {a.length} tokens a rank, "
          f"{a.rounds} rounds of {a.steps} steps")
    for key, what, unit, scale in (("cpu", "CPU of a step", "ms", 1e3), ("wall", "step", "ms", 1e3),
                                   ("most", "memory", "MiB", 1 / 1024), ("own", "memory of its own", "MiB", 1 / 1024)):
        mine, its, again = ([r[key] for r in rows] for rows in (first, rival, second))
        print(f"  {what:18} ours {statistics.median(mine) * scale:8.1f} {unit}, PyTorch "
              f"{statistics.median(its) * scale:8.1f} {unit}; ratio "
              f"{spread([(x + z) / 2 / y for x, y, z in zip(mine, its, again)])}, control "
              f"{spread([z / x for x, z in zip(mine, again)])}", flush=True)


if __name__ == "__main__":
    main()
