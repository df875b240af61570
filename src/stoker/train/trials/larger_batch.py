"""What a larger batch would spare: where steps are quick, much of one may not depend on its images.

Invariant: leaves no trace. Gradients are taken beside the network's own, buffers are put back, and
each step seeds its own chance: the run goes on as if nothing had been tried.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import torch
from torch import Tensor, nn

from stoker.measure.facts import LARGER
from stoker.train.step import AMP_TYPES, Step
from stoker.train.trials.memory import kept_bytes

LEAST_TRIALS, MOST_TRIALS = 3, 12
SECONDS = 1.0
"""After so many, no more trials than the least."""


def larger_batch(step: Step, room: int) -> tuple[float, float] | None:
    """Seconds of a pass forward and backward over the images of a step, and over `LARGER` times as
    many; None where these would take more than half of the room that is left in memory."""
    assert step.loaded is not None
    model = step.state.model
    with untouched(model):
        few = step.to_input(step.loaded.images)
        if LARGER * kept_bytes(model, few) > room // 2:
            return None
        many = torch.cat([few] * LARGER)
        took: list[list[float]] = [[], []]
        began = time.perf_counter()
        for trial in range(MOST_TRIALS + 1):
            if trial > LEAST_TRIALS and time.perf_counter() - began > SECONDS:
                break
            for number, batch in enumerate((few, many)):
                seconds = passes(step, batch)
                if trial:  # the first chooses kernels
                    took[number].append(seconds)
        return median(took[0]), median(took[1])


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put back what passes over a network change in it."""
    before = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, kept in zip(model.buffers(), before, strict=True):
                buffer.copy_(kept)
        if next(model.parameters()).is_cuda:
            torch.cuda.empty_cache()


def passes(step: Step, images: Tensor) -> float:
    """Seconds of one pass forward and backward."""
    device, amp, model = step.ranks.device, step.recipe.amp, step.state.model
    began = time.perf_counter()
    with torch.autocast(device.type, AMP_TYPES.get(amp), amp in AMP_TYPES):
        total = model(images).float().sum()
    weights = [p for p in model.parameters() if p.requires_grad]
    torch.autograd.grad(total, weights, allow_unused=True)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
