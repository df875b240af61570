"""A pass of images through the model, shared by training, trials and compilation.

Invariants: training, trials and compilation all compute logits with `forward`, in the precision of
the recipe. A pass inside `buffers_restored` leaves no trace in the model's buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

AMP_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def forward(model: nn.Module, images: Tensor, amp: str) -> Tensor:
    """The logits of some images: computed in the precision `amp`, returned in at least 32 bits."""
    with torch.autocast(images.device.type, AMP_TYPES.get(amp), amp in AMP_TYPES):
        logits: Tensor = model(images)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def blank_images(image_size: int, device: torch.device, count: int = 2) -> Tensor:
    """Black images, for passes whose result is thrown away."""
    return torch.zeros(count, 3, image_size, image_size, device=device)


@contextmanager
def buffers_restored(model: nn.Module) -> Iterator[None]:
    """Put back the buffers (running statistics) that passes inside this block change."""
    before = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, kept in zip(model.buffers(), before, strict=True):
                buffer.copy_(kept)
        if next(model.parameters()).is_cuda:
            torch.cuda.empty_cache()
