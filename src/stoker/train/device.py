"""What depends on the device: arithmetic, batch memory, and the way of a batch to its input.

Whatever only a GPU can show is written here, and in ranks.py, in its plainest form.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stoker.recipe.recipe import Recipe
from stoker.train.model import Normalise


def set_arithmetic(recipe: Recipe) -> None:
    """Process-wide choices of precision and kernels."""
    tf32 = recipe.amp == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = not recipe.deterministic
    torch.use_deterministic_algorithms(recipe.deterministic, warn_only=True)


def batch_memory(device: torch.device) -> Callable[[tuple[int, ...]], NDArray[np.uint8]]:
    """Batch buffers: pinned where a GPU copies from them."""

    def allocate(shape: tuple[int, ...]) -> NDArray[np.uint8]:
        return torch.empty(shape, dtype=torch.uint8, pin_memory=device.type == "cuda").numpy()

    return allocate


def input_maker(
    normalise: Normalise, device: torch.device, channels_last: bool
) -> Callable[[NDArray[np.uint8]], Tensor]:
    """Bytes of a batch to what the network takes, normalised on the device."""
    mean = torch.tensor(normalise.mean, device=device)[:, None, None] * 255
    scale = 1 / (torch.tensor(normalise.std, device=device)[:, None, None] * 255)

    def to_input(images: NDArray[np.uint8]) -> Tensor:
        pixels = torch.from_numpy(images).to(device).permute(0, 3, 1, 2)
        if not channels_last:
            pixels = pixels.contiguous()
        return (pixels.float() - mean) * scale

    return to_input
