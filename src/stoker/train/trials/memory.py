"""The memory and disk space that a model takes, known before it is built.

Invariants: nothing is computed, downloaded or allocated: only shapes pass through the model, no
numbers. The estimate for a step is the activations that the forward pass keeps for the backward
pass, which are most of its memory; measured steps took 0.9 to 1.2 times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor, nn

from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.train.model.build import build_model

FLOAT_BYTES = 4
SAMPLE_IMAGES = 4
"""Images whose shapes pass through the model."""
MARGIN = 1.1
"""Memory of a step for each byte of activations that it keeps."""


def model_of_shapes(recipe: Recipe, classes: int) -> nn.Module:
    """The model with shapes only, without numbers."""
    with torch.device("meta"):
        return build_model(replace(recipe, pretrained=False), classes)[0]


def parameters(recipe: Recipe, classes: int) -> int:
    """The number of parameters of the recipe's model."""
    return sum(weight.numel() for weight in model_of_shapes(recipe, classes).parameters())


def checkpoint_bytes(recipe: Recipe, numbers: int) -> int:
    """Bytes of a checkpoint of so many parameters: weights, moving average, optimiser state."""
    copies = 1 + int(recipe.ema) + (2 if recipe.optimizer == "adamw" else int(recipe.momentum > 0))
    return FLOAT_BYTES * numbers * copies


def image_bytes(recipe: Recipe, classes: int) -> int:
    """Bytes that a step holds for each image; 0 if the model does not run on shapes alone."""
    side = recipe.image_size
    images = torch.empty(SAMPLE_IMAGES, 3, side, side, device="meta")
    with suppress(RuntimeError, NotImplementedError):
        share = 0.5 if recipe.amp in ("bf16", "fp16") else 1.0
        model = model_of_shapes(recipe, classes).train()
        return int(share * activation_bytes(model, lambda: model(images)) / SAMPLE_IMAGES)
    return 0


def activation_bytes(model: nn.Module, make_pass: Callable[[], Tensor]) -> int:
    """Bytes of activations that a forward pass keeps for the backward pass, plus a margin."""
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    activations: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            activations[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        make_pass()
    return int(MARGIN * sum(storage.nbytes() for storage in activations.values()))


def free_on(device: torch.device, free_bytes: int) -> int:
    """Free memory for a step: the GPU's, or on a CPU the machine's `free_bytes`."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_bytes


def refuse_too_large(recipe: Recipe, classes: int, free_bytes: int) -> None:
    """Raise BadRequest for a batch that does not fit into memory, before it is tried."""
    images = min(recipe.micro_batch or recipe.batch_size, recipe.batch_size)
    bytes_each = image_bytes(recipe, classes)
    if bytes_each * images <= free_bytes:
        return
    fits = max(int(free_bytes / bytes_each) // 2 * 2, 2)
    raise BadRequest(
        f"{images:,} images of {recipe.image_size} px at once through {recipe.model} need about "
        f"{bytes_each * images / 1e9:,.1f} GB, and {free_bytes / 1e9:,.1f} GB are free: lower "
        f"--batch-size or --micro-batch to {fits:,}, or --image-size"
    )
