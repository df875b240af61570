"""What our part of a step costs the training thread: all but forward, backward and kernels.

    python benchmarks/host_time.py [--model resnet50] [--steps 300] [--plain]

The real loop and step run with the model's list of parameters and buffers, each of one element, so
that kernels have next to nothing to compute. Forward and backward are replaced. The code is that of
a GPU as far as a CPU can run it: a fused optimiser that skips by a flag, a ring and slots whose
copies happen at once, sums that are read two steps late. Order, boxes and mixing numbers are drawn
by loader threads, so batches arrive complete. CPU time of the training thread, median of rounds of
steps, with mixing, moving average and clipping unless --plain. The limit is that of a core which
adds 1 to eight numbers, by a call of PyTorch, in YARDSTICK_US or less; a slower core has more, in
proportion.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from figures import spread_text
from stoker.data.loading.loader import BatchMemory, Loaded
from stoker.doctor.selftest.loop_ratio import build_loop
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Batch
from stoker.survive.divergence import LATE_STEPS, Sentinel
from stoker.train import step as step_module
from stoker.train.mixing import draw_mix
from stoker.train.model.build import build_model
from stoker.train.process_group import Ranks
from stoker.train.transfer import Copies

LIMIT_MS = 1.5
YARDSTICK_US = 3.3
CLASSES, IMAGES = 10, 256
STEPS_OF_A_ROUND = 20
KERNELS = ("_fused_sgd_", "_foreach_norm", "_foreach_mul_", "_foreach_lerp_", "_foreach_copy_")


def limit_ms() -> float:
    """The limit on this core: a host that launches everything slower is no fault of ours."""
    number, took_us = torch.zeros(8), []
    for _ in range(9):
        began = time.process_time()
        for _ in range(20_000):
            number.add_(1)
        took_us.append(1e6 * (time.process_time() - began) / 20_000)
    return LIMIT_MS * max(1.0, statistics.median(took_us) / YARDSTICK_US)


class KernelTime:
    """CPU seconds in the kernels over all tensors, in the loss and in what replaces backward. A CPU
    computes these tensor by tensor; a GPU is given a few launches instead."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for name in KERNELS:
            setattr(torch, name, self.timed(getattr(torch, name)))
        step_module.cross_entropy = self.timed(step_module.cross_entropy)

    def timed(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            out = kernel(*args, **kwargs)
            self.seconds += time.thread_time() - began
            return out

        return timed


class AtOnce:
    """Streams in which everything happens at once."""

    def host_memory(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    device_memory = host_memory

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def mark(self, stream: str) -> None: ...

    def wait(self, stream: str, event: None) -> None: ...

    def passed(self, event: None) -> bool:
        return True

    def wait_on_host(self, event: None) -> None: ...


class Shrunk(nn.Module):
    """A model with each parameter and buffer cut down to one element."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        for module in model.modules():
            for name, weight in list(module.named_parameters(recurse=False)):
                one = torch.zeros((1,) * weight.ndim, requires_grad=weight.requires_grad)
                setattr(module, name, nn.Parameter(one))
            for name, buffer in list(module.named_buffers(recurse=False)):
                setattr(module, name, torch.zeros((), dtype=buffer.dtype))
        self.logits = torch.zeros(IMAGES, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.logits[: len(images)]


class Prepared:
    """A loader whose batches are complete before they are asked for."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.memory: BatchMemory | None = None
        self.kernels = KernelTime()
        self.rounds: list[tuple[float, float]] = []

    def batches(self, plan: Iterable[Batch], waiting: object) -> Iterator[Loaded]:
        assert self.memory is not None
        numbers, zeros = np.arange(IMAGES), np.zeros(IMAGES, np.int64)
        drawn = draw_mix(self._recipe, self._recipe.image_size, numbers, zeros)
        began, in_kernels = time.thread_time(), self.kernels.seconds
        for number, batch in enumerate(plan):
            if number % STEPS_OF_A_ROUND == 0 and number:
                now, kernels = time.thread_time(), self.kernels.seconds
                whole = (now - began) / STEPS_OF_A_ROUND * 1000
                ours = whole - (kernels - in_kernels) / STEPS_OF_A_ROUND * 1000
                self.rounds.append((ours, whole))
                began, in_kernels = now, kernels
            images = self.memory.take((IMAGES, 1, 1, 3))
            yield Loaded(batch, images, zeros, numbers, zeros, drawn)
            self.memory.give_back(images)


def measure(recipe: Recipe, steps: int) -> list[tuple[float, float]]:
    """CPU milliseconds a step on the training thread, of each round: without kernels, in all."""
    model = Shrunk(build_model(recipe, CLASSES)[0])
    weights = list(model.parameters())
    gradients = [torch.ones_like(weight) for weight in weights]

    def backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient

    with tempfile.TemporaryDirectory() as name:
        loader = Prepared(recipe)
        Tensor.backward = loader.kernels.timed(backward)  # type: ignore[method-assign]
        loop = build_loop(recipe, steps, Path(name), model, loader, Ranks.join())
        torch.set_num_threads(1)
        step, groups = loop.step, loop.state.optimizer.param_groups
        groups = [{key: group[key] for key in ("params", "weight_decay")} for group in groups]
        loop.state.optimizer = torch.optim.SGD(
            groups, lr=1.0, momentum=recipe.momentum, nesterov=True, fused=True
        )
        step.batches = Copies(AtOnce())
        loader.memory = step.batches.memory(4)
        step.to_input = lambda images, mix: images
        step.late_steps, step.sentinel = LATE_STEPS, Sentinel(LATE_STEPS)
        loop.run()
        loop.guards.watchdog.close()
        loop.records.verdicts.close()
    return loader.rounds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--plain", action="store_true", help="no mixing, average or clipping")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--json", action="store_true", help="print the median as JSON")
    flags = parser.parse_args()
    extras: dict[str, Any] = {"mixup_alpha": 0.2, "cutmix_prob": 0.5, "ema": True, "clip_grad": 1.0}
    recipe = Recipe(
        model=flags.model,
        image_size=32,
        batch_size=IMAGES,
        epochs=1,
        lr=1e-9,
        label_smoothing=0.1,
        **({} if flags.plain else extras),
    )
    if flags.profile:
        profiler = cProfile.Profile()
        profiler.runcall(measure, recipe, flags.steps)
        profiler.print_stats("tottime")
        return
    ours, whole = zip(*measure(recipe, flags.steps), strict=True)
    limit = limit_ms()
    if flags.json:
        print(json.dumps({"ours_ms": statistics.median(ours), "limit_ms": limit}))
        return
    print(f"milliseconds a step on the training thread: {spread_text(ours, 2)}; limit {limit:.2f}")
    print(f"with the kernels, which a CPU computes tensor by tensor: {spread_text(whole, 2)}")


if __name__ == "__main__":
    main()
