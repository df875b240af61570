"""Which share of a device's peak a model uses (MFU): operations counted from the model itself.

Invariants: operations are counted on the meta device, without numbers, forward and backward. The
share is empty wherever the peak of the device in that precision is not known: a CPU's never is.
"""

from __future__ import annotations

from importlib import import_module

from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe

COUNTED_IMAGES = 2
"""Images of the counted pass: some layers refuse to train on one."""
KNOWN = "stoker.plan.gpu.known"
"""The table of GPUs, which gives peaks in TFLOPS."""
TERA = 1e12


def training_flops(recipe: Recipe, classes: int) -> float | None:
    """Floating-point operations of one image, forward and backward; None for a model that needs
    numbers to run. A multiplication and an addition are two operations."""
    # Here, because reading a table needs no torch.
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from stoker.train.trials.memory import model_of_shapes

    try:
        model = model_of_shapes(recipe, classes).train()
        shape = (COUNTED_IMAGES, 3, recipe.image_size, recipe.image_size)
        images = torch.empty(shape, device="meta")
        with FlopCounterMode(display=False) as counter:
            model(images).sum().backward()
    except Exception:  # a model of the user's own may read the values of its tensors
        return None
    return counter.get_total_flops() / COUNTED_IMAGES or None


def peak_flops(gpu: str, memory_bytes: int, precision: str) -> float | None:
    """Operations a second that a GPU can make at most; None where no source is known."""
    if not gpu:
        return None
    try:
        peak = import_module(KNOWN).gpu_named(gpu, memory_bytes / 2**30).peak(precision)
    except (ImportError, BadRequest):
        return None
    return float(peak) * TERA or None


def utilisation(
    images_per_s: float, flops_per_image: float | None, peak: float | None, devices: int
) -> float | None:
    """The share of the peak of all devices that the model's operations need; None if unknown."""
    if not flops_per_image or not peak or devices < 1:
        return None
    return images_per_s * flops_per_image / (peak * devices)
