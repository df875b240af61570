"""What depends on the device: arithmetic, memory layout, batch memory, and a model's input.

Code that only a GPU can test is here and in process_group.py, in its simplest form.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.train.model.build import Normalise, build_model

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
DETERMINISTIC_WORKSPACES = (":4096:8", ":16:8")
"""With these values of the variable cuBLAS sums in the same order each time."""


def fix_workspace(recipe: Recipe) -> None:
    """Let cuBLAS be deterministic if the recipe asks for that: before it starts, which is when it
    reads the variable. A value that the user has set stays."""
    if recipe.deterministic:
        os.environ.setdefault(WORKSPACE, DETERMINISTIC_WORKSPACES[0])


def set_arithmetic(recipe: Recipe) -> None:
    """Set the precision and the kernels of this process. Raises BadRequest for bf16 on a GPU that
    does not have it: PyTorch would emulate it, slower than fp32."""
    if recipe.amp == "bf16" and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        if torch.version.cuda and major < 8:
            raise BadRequest(
                f"--amp bf16 needs a GPU of compute capability 8.0 or newer, and "
                f"{torch.cuda.get_device_name()} has {major}.{minor}: use --amp fp16"
            )
    fix_workspace(recipe)
    tf32 = recipe.amp == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = not recipe.deterministic
    torch.use_deterministic_algorithms(recipe.deterministic, warn_only=True)


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the random generator of this device."""
    if device.type == "cpu":
        # manual_seed records the caller's stack for every device type that is absent: slow.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def memory_format(recipe: Recipe) -> torch.memory_format:
    """The memory layout of weights and images."""
    return torch.channels_last if recipe.channels_last else torch.contiguous_format


def build_on_device(
    recipe: Recipe, classes: int, device: torch.device
) -> tuple[nn.Module, Normalise]:
    """The recipe's model on the device, in the recipe's memory layout, and the input it expects."""
    model, normalise = build_model(recipe, classes)
    return model.to(device=device, memory_format=memory_format(recipe)), normalise  # type: ignore[call-overload]


def batch_memory(device: torch.device) -> Callable[[tuple[int, ...]], NDArray[np.uint8]]:
    """A function that allocates batch buffers: pinned if a GPU copies from them."""
    pinned = device.type == "cuda"
    return lambda shape: torch.empty(shape, dtype=torch.uint8, pin_memory=pinned).numpy()


def input_maker(
    normalise: Normalise, device: torch.device, channels_last: bool
) -> Callable[[NDArray[np.uint8]], Tensor]:
    """A function that turns the bytes of a batch into the model's normalised input."""
    mean = torch.tensor(normalise.mean, device=device) * 255
    scale = 1 / (torch.tensor(normalise.std, device=device) * 255)

    @cache
    def repeated(width: int) -> tuple[Tensor, Tensor]:
        return mean.repeat(width), scale.repeat(width)

    def planes(images: NDArray[np.uint8]) -> Tensor:
        pixels = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).contiguous().float()
        return pixels.sub_(mean[:, None, None]).mul_(scale[:, None, None])

    def interleaved(images: NDArray[np.uint8]) -> Tensor:
        pixels = torch.from_numpy(images).to(device).float()
        # Whole rows at once: three numbers at a time take a CPU four times as long.
        count, height, width, colours = pixels.shape
        row_mean, row_scale = repeated(width)
        pixels.view(count, height, width * colours).sub_(row_mean).mul_(row_scale)
        return pixels.permute(0, 3, 1, 2)

    return interleaved if channels_last else planes
