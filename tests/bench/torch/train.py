"""Step times of PyTorch: prints one JSON object with median_s, cpu_s, first_step_s, peak_rss_mib.

    tests/bench/torch/train.py --mode eager --preset tiny --steps 100
    torchrun --nproc-per-node 2 tests/bench/torch/train.py --mode ddp

eager and compile run alone, llama-small (of the transformers library) in these modes only; ddp, fsdp (fully_shard of each block and of the whole) and pp (1F1B with
four micro-batches, untied) run under torchrun, over Gloo. AdamW is the fused one. --bf16: under autocast.
"""
import argparse
import importlib
import json
import resource
import statistics
import sys
import time

import torch
import torch.distributed as dist

import gpt


def alone(a):
    model = gpt.GPT(a.preset, a.vocab, dropout=a.dropout) if a.preset in gpt.SIZES else a.llama.Llama(a.preset, a.vocab)
    run = torch.compile(model) if a.mode == "compile" else model

    def step(x, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=a.bf16):
            loss = gpt.loss_of(run(x), y)
        loss.backward()

    return model, step


def in_parallel(a):
    model = gpt.GPT(a.preset, a.vocab, dropout=a.dropout)
    if a.mode == "ddp":
        run = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        run = fully_shard(model)

    def step(x, y):
        share = slice(a.rank * len(x) // a.world, (a.rank + 1) * len(x) // a.world)
        gpt.loss_of(run(x[share]), y[share]).backward()

    return model, step


def in_stages(a):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    layers = gpt.SIZES[a.preset][0]
    first, last = (layers * r // a.world for r in (a.rank, a.rank + 1))
    model = gpt.GPT(a.preset, a.vocab, first, last, a.dropout)
    stage = PipelineStage(model, a.rank, a.world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=gpt.loss_of)

    def step(x, y):
        schedule.step(*([x] if a.rank == 0 else []), **({"target": y} if a.rank == a.world - 1 else {}))

    return model, step


MODES = {"eager": alone, "compile": alone, "ddp": in_parallel, "fsdp": in_parallel, "pp": in_stages}


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mode", choices=MODES, default="eager")
    p.add_argument("--preset", choices=[*gpt.SIZES, "llama-small"], default="tiny")
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--vocab", type=int, default=65)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--bf16", action="store_true", help="under autocast to bfloat16, alone")
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--warm-up", type=int, default=3)
    p.add_argument("--clip", type=float, default=0.0, help="greatest norm of gradients; 0: none")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1337)
    a.rank, a.world = 0, 1
    a.llama = None if a.preset in gpt.SIZES else importlib.import_module("llama")
    if MODES[a.mode] is not alone:
        dist.init_process_group("gloo")
        a.rank, a.world = dist.get_rank(), dist.get_world_size()
    model, backward = MODES[a.mode](a)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    walls, cpus = [], []
    block, batch = (gpt.SIZES if a.llama is None else a.llama.SIZES)[a.preset][-2:]
    for x, y in list(gpt.batches(block, batch, a.vocab, a.warm_up + a.steps)):
        wall, cpu = time.perf_counter(), cpu_seconds()
        backward(x, y)
        if a.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), a.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        walls.append(time.perf_counter() - wall)
        cpus.append(cpu_seconds() - cpu)
    if a.rank in (0, a.world - 1):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # One write: ranks share the pipe, and torchrun takes their buffers away.
        sys.stdout.write(json.dumps({
            "mode": a.mode, "rank": a.rank, "first_step_s": walls[0], "peak_rss_mib": peak / 1024,
            "median_s": statistics.median(walls[a.warm_up:]),
            "cpu_s": statistics.median(cpus[a.warm_up:])}) + "\n")
    if a.world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
