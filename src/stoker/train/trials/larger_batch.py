"""The time that a larger batch would save: part of a short step may not depend on its images.

Invariant: the trial leaves no trace. Its gradients are kept apart from the model's own, buffers are
put back, and each step seeds its own random numbers: the run continues as if nothing was tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from stoker.measure.facts import LARGER
from stoker.train.passes import buffers_restored, forward
from stoker.train.step import Step
from stoker.train.trials.memory import activation_bytes

LEAST_TRIALS, MOST_TRIALS = 3, 12
SECONDS = 1.0
"""After this time there are no more trials than LEAST_TRIALS."""
Clock = Callable[[], float]


def larger_batch(
    step: Step, free_bytes: int, clock: Clock = time.perf_counter
) -> tuple[float, float] | None:
    """Seconds of a pass over a step's images, and `LARGER` times as many; None without memory."""
    assert step.loaded is not None
    model = step.state.model
    with buffers_restored(model):
        pixels = torch.from_numpy(step.loaded.images).to(step.ranks.device)
        images = step.to_input(pixels, None)
        kept = activation_bytes(model, lambda: forward(model, images, step.recipe.amp))
        if LARGER * kept > free_bytes // 2:
            return None
        more_images = torch.cat([images] * LARGER)
        seconds: tuple[list[float], list[float]] = [], []
        began = clock()
        for trial in range(MOST_TRIALS + 1):
            if trial > LEAST_TRIALS and clock() - began > SECONDS:
                break
            for batch, times in zip((images, more_images), seconds, strict=True):
                pass_s = time_pass(step, batch, clock)
                if trial:  # the first pass chooses kernels
                    times.append(pass_s)
        return median(seconds[0]), median(seconds[1])


def time_pass(step: Step, images: Tensor, clock: Clock = time.perf_counter) -> float:
    """Seconds of one forward and backward pass."""
    model, began = step.state.model, clock()
    total = forward(model, images, step.recipe.amp).sum()
    weights = [p for p in model.parameters() if p.requires_grad]
    torch.autograd.grad(total, weights, allow_unused=True)
    if step.ranks.device.type == "cuda":
        torch.cuda.synchronize(step.ranks.device)
    return clock() - began
