"""One rank of tests/bench/collectives.py: median time of PyTorch's all-reduce over Gloo by size.

    torchrun --nproc-per-node 2 tests/bench/torch/all_reduce.py 1024 1048576
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
for size in map(int, sys.argv[1:]):
    x = torch.ones(size // 4)
    rounds = 3000 if size < 1 << 16 else 500 if size < 1 << 24 else 15
    times = []
    for i in range(-10, rounds):
        start = time.perf_counter()
        dist.all_reduce(x)
        if i >= 0:
            times.append(time.perf_counter() - start)
        if i % 50 == 0:
            x.fill_(1)  # sums must stay finite
    if dist.get_rank() == 0:
        print(json.dumps({"bytes": size, "median_us": statistics.median(times) * 1e6}), flush=True)
dist.destroy_process_group()
