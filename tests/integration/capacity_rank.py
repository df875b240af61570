"""One rank that measures how fast it can send: python capacity_rank.py RANK WORLD METHOD."""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist

from stoker.measure.trials.link import measure_send_rate

rank, world, method = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
torch.manual_seed(7)
before = torch.get_rng_state()
began = time.monotonic()
rate, _ = measure_send_rate(world) or (None, None)
took_s = time.monotonic() - began
assert torch.equal(before, torch.get_rng_state()), "the random state of training is not touched"
print(json.dumps({"rate": rate, "took_s": took_s}), flush=True)
dist.barrier()
dist.destroy_process_group()
