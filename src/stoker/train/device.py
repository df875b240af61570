"""What depends on the device: arithmetic, batch memory, and the way of a batch to its input.

Whatever only a GPU can show is written here, and in ranks.py, in its plainest form.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stoker.recipe.recipe import Recipe
from stoker.train.model.build import Normalise


def set_arithmetic(recipe: Recipe) -> None:
    """Process-wide choices of precision and kernels."""
    tf32 = recipe.amp == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = not recipe.deterministic
    torch.use_deterministic_algorithms(recipe.deterministic, warn_only=True)


def seed_device(device: torch.device, seed: int) -> None:
    """Seed what this device draws from."""
    if device.type == "cpu":
        # manual_seed notes the caller's stack for every kind of device that is not there.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def batch_memory(device: torch.device) -> Callable[[tuple[int, ...]], NDArray[np.uint8]]:
    """Batch buffers: pinned where a GPU copies from them."""

    def allocate(shape: tuple[int, ...]) -> NDArray[np.uint8]:
        return torch.empty(shape, dtype=torch.uint8, pin_memory=device.type == "cuda").numpy()

    return allocate


def input_maker(
    normalise: Normalise, device: torch.device, channels_last: bool
) -> Callable[[NDArray[np.uint8]], Tensor]:
    """Bytes of a batch to what the network takes, normalised on the device."""
    mean = torch.tensor(normalise.mean, device=device) * 255
    scale = 1 / (torch.tensor(normalise.std, device=device) * 255)

    @cache
    def along(width: int) -> tuple[Tensor, Tensor]:
        return mean.repeat(width), scale.repeat(width)

    def planes(images: NDArray[np.uint8]) -> Tensor:
        pixels = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).contiguous().float()
        return pixels.sub_(mean[:, None, None]).mul_(scale[:, None, None])

    def interleaved(images: NDArray[np.uint8]) -> Tensor:
        pixels = torch.from_numpy(images).to(device).float()
        # Whole rows at once: three numbers at a time take a CPU four times as long.
        images_here, height, width, colours = pixels.shape
        rows = pixels.view(images_here, height, width * colours)
        less, times = along(width)
        rows.sub_(less).mul_(times)
        return pixels.permute(0, 3, 1, 2)

    return interleaved if channels_last else planes
