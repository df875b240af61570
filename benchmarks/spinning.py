"""What it costs that threads which compute together wait for each other awake.

    python benchmarks/spinning.py [--rounds 5]

Trains a small model on all cores, with OpenMP's own limit of spinning, with ours (host/threads.py,
`limit_spinning`) and without any, in turns: alone, and beside two busy programs for each core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

from stoker.host.limits import usable_cores
from stoker.host.threads import SPINS

BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
SETTINGS = {"OpenMP's own": None, "ours": SPINS, "no spinning": "0"}


def step_ms(steps: int) -> float:
    """The mean time of a step of a small model, in milliseconds."""
    import torch
    from torch import nn

    from stoker.recipe.recipe import Recipe
    from stoker.train.model.build import build_model

    torch.set_num_threads(usable_cores())
    model, _ = build_model(Recipe(model="resnet9_w16"), 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(16, 3, 48, 48), torch.randint(0, 4, (16,))
    warm_up = 5
    for number in range(warm_up + steps):
        if number == warm_up:
            began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return (time.perf_counter() - began) / steps * 1000


def measure(spins: str | None, neighbours: int, steps: int) -> float:
    """`step_ms` in a process of its own, beside busy programs."""
    environment = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
    if spins is not None:
        environment["GOMP_SPINCOUNT"] = spins
    command = [sys.executable, __file__, "--child", "--steps", str(steps)]
    busy = [subprocess.Popen([sys.executable, "-I", "-c", BUSY]) for _ in range(neighbours)]
    try:
        return float(subprocess.check_output(command, env=environment, text=True))
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(step_ms(options.steps))
        return
    for neighbours in (0, 2 * usable_cores()):
        steps = max(options.steps // (4 if neighbours else 1), 1)
        times: dict[str, list[float]] = {name: [] for name in SETTINGS}
        for _ in range(options.rounds):
            for name, spins in SETTINGS.items():
                times[name].append(measure(spins, neighbours, steps))
        for name, values in times.items():
            print(
                f"{neighbours} busy programs, {name:<13} {statistics.median(values):7.1f} ms a step"
                f" ({min(values):.1f} to {max(values):.1f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
