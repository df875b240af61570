"""What a network takes of memory and disk, told before it is made.

Invariants: nothing is computed, downloaded or allocated for it: shapes go through the network, no
numbers. What a step holds is what the forward pass keeps for the backward pass, which is most of
it; real steps have been seen to take 0.9 to 1.2 times as much.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor, nn

from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.train.model.build import build_model

FLOAT_BYTES = 4
TRIED = 4
"""Images whose shapes go through the network."""
BEYOND = 1.1
"""A step's memory for each byte that is kept for its backward pass."""


def shape_of(recipe: Recipe, classes: int) -> nn.Module:
    """The network without its numbers."""
    with torch.device("meta"):
        return build_model(replace(recipe, pretrained=False), classes)[0]


def parameters(recipe: Recipe, classes: int) -> int:
    return sum(each.numel() for each in shape_of(recipe, classes).parameters())


def checkpoint_bytes(recipe: Recipe, numbers: int) -> int:
    """What a checkpoint of so many parameters takes: weights, their average, the optimiser's."""
    copies = 1 + int(recipe.ema) + (2 if recipe.optimizer == "adamw" else int(recipe.momentum > 0))
    return FLOAT_BYTES * numbers * copies


def image_bytes(recipe: Recipe, classes: int) -> int:
    """What a step holds for each image; 0 for a network that does not run on shapes alone."""
    side = recipe.image_size
    images = torch.empty(TRIED, 3, side, side, device="meta")
    with suppress(RuntimeError, NotImplementedError):
        share = 0.5 if recipe.amp in ("bf16", "fp16") else 1.0
        return int(share * kept_bytes(shape_of(recipe, classes).train(), images) / TRIED)
    return 0


def kept_bytes(model: nn.Module, images: Tensor) -> int:
    """What a pass over some images holds for its way back, and a little more."""
    own = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(images)
    return int(BEYOND * sum(each.nbytes() for each in kept.values()))


def free_on(device: torch.device, room: int) -> int:
    """Memory that a step can still take: the GPU's, or the room on the machine."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else room


def refuse_too_large(recipe: Recipe, classes: int, room: int) -> None:
    """Refuse a batch that no step can hold, before the machine is brought to its knees."""
    at_once = min(recipe.micro_batch or recipe.batch_size, recipe.batch_size)
    each = image_bytes(recipe, classes)
    if each * at_once <= room:
        return
    fits = max(int(room / each) // 2 * 2, 2)
    raise BadRequest(
        f"{at_once:,} images of {recipe.image_size} px at once through {recipe.model} need about "
        f"{each * at_once / 1e9:,.1f} GB, and {room / 1e9:,.1f} GB are free: lower --batch-size "
        f"or --micro-batch to {fits:,}, or --image-size"
    )
