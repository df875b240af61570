"""The size of a model and its checkpoints before they are made, what a pass keeps, free memory.

Invariant: nothing is downloaded, and the model of shapes holds no numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from stoker.recipe.recipe import Recipe
from stoker.train.model.build import build_model

FLOAT_BYTES = 4
MARGIN = 1.1
"""Memory of a step for each byte of activations that it keeps."""


def model_of_shapes(recipe: Recipe, classes: int) -> nn.Module:
    """The model with shapes only, without numbers."""
    with torch.device("meta"):
        return build_model(recipe, classes)[0]


def parameters(recipe: Recipe, classes: int) -> int:
    """The number of parameters of the recipe's model."""
    return sum(weight.numel() for weight in model_of_shapes(recipe, classes).parameters())


def checkpoint_bytes(recipe: Recipe, numbers: int) -> int:
    """Bytes of a checkpoint of so many parameters: weights, moving average, optimiser state."""
    # Of the other optimisers most have two numbers for each weight.
    moments = int(recipe.momentum > 0) if recipe.optimizer == "sgd" else 2
    copies = 1 + int(recipe.ema) + moments
    return FLOAT_BYTES * numbers * copies


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
