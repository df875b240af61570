"""How much of a step does not depend on how many images are in it.

Invariant: leaves no trace. Gradients are taken beside the network's own, buffers are put back, and
each step seeds its own chance: the run goes on as if nothing had been tried.
"""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import Tensor

from stoker.train.step import AMP_TYPES, Step

TRIALS = 5


def fixed_cost(step: Step) -> float:
    """Seconds that forward and backward would take without images: what is left where the time of
    a batch and of half of it are carried on to none."""
    assert step.loaded is not None
    model, device = step.state.model, step.ranks.device
    held = len(step.loaded.labels)
    whole = min(step.micro_batch or held, held)
    sizes = (whole, whole // 2) if whole > 3 else (2 * whole, whole)
    before = {name: tensor.clone() for name, tensor in model.named_buffers()}
    images = step.to_input(step.loaded.images)
    if len(images) < sizes[0]:
        images = torch.cat([images] * 2)
    took: dict[int, list[float]] = {size: [] for size in sizes}
    for trial in range(TRIALS + 1):
        for size in sizes:
            seconds = passes(step, images[:size], device)
            if trial:
                took[size].append(seconds)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
    large, small = (median(took[size]) for size in sizes)
    per_image = max(large - small, 0.0) / (sizes[0] - sizes[1])
    return max(small - sizes[1] * per_image, 0.0)


def passes(step: Step, images: Tensor, device: torch.device) -> float:
    """Seconds of one pass forward and backward."""
    on_gpu, amp = device.type == "cuda", step.recipe.amp
    began = time.perf_counter()
    with torch.autocast(device.type, AMP_TYPES.get(amp), amp in AMP_TYPES):
        total = step.state.model(images).float().sum()
    torch.autograd.grad(total, [p for p in step.state.model.parameters() if p.requires_grad])
    if on_gpu:
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
