"""Masks: which weights of a model are kept, and which stay exactly zero.

Invariants: only kernels of convolutions and linear layers are pruned, never biases, norms or
buffers. A mask keeps an exact number of weights: of equal ones, those that come first in the model.
While a mask is applied, pruned weights, their gradients, their moving average and all that the
optimiser keeps of them are zero after every step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.chance import seed_of

Masks = dict[str, Tensor]
"""For each kernel, by its name: True where a weight is kept."""
PRUNABLE = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Linear,
)


def kernel_names(model: nn.Module) -> list[str]:
    """The names of the weights that may be pruned, in the order of the model; a kernel that two
    layers share once."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    names = [known[id(module.weight)] for module in model.modules() if isinstance(module, PRUNABLE)]
    return list(dict.fromkeys(names))


def kernels_of(weights: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    return {name: weights[name].detach() for name in names}


def all_kept(kernels: Mapping[str, Tensor]) -> Masks:
    return {name: torch.ones(kernel.shape, dtype=torch.bool) for name, kernel in kernels.items()}


def kept_count(masks: Mapping[str, Tensor]) -> int:
    return sum(int(mask.sum()) for mask in masks.values())


def total_count(masks: Mapping[str, Tensor]) -> int:
    return sum(mask.numel() for mask in masks.values())


def largest_kept(
    kernels: Mapping[str, Tensor], share: float, before: Mapping[str, Tensor] | None = None
) -> Masks:
    """The masks that keep this share of all kernels' weights: the largest ones, compared over all
    layers. Where masks were in use before, what they pruned stays pruned."""
    before = before or all_kept(kernels)
    sizes = torch.cat([kernel.abs().flatten().double() for kernel in kernels.values()])
    kept = torch.cat([before[name].flatten() for name in kernels])
    sizes[~kept] = -1.0
    count = min(round(share * len(sizes)), int(kept.sum()))
    return _split(_first(sizes, count), kernels)


def largest_kept_by_layer(kernels: Mapping[str, Tensor], share: float) -> Masks:
    """The masks that keep this share of each kernel: its largest weights."""
    return {
        name: _first(kernel.abs().flatten().double(), round(share * kernel.numel())).view(
            kernel.shape
        )
        for name, kernel in kernels.items()
    }


def random_like(masks: Mapping[str, Tensor], seed: int) -> Masks:
    """Masks that keep as many weights of each kernel as these do, at random places."""
    drawn = {}
    for name, mask in masks.items():
        generator = torch.Generator().manual_seed(seed_of(seed, "random mask", name))
        order = torch.randperm(mask.numel(), generator=generator)
        chosen = torch.zeros(mask.numel(), dtype=torch.bool)
        chosen[order[: int(mask.sum())]] = True
        drawn[name] = chosen.view(mask.shape)
    return drawn


def _first(sizes: Tensor, count: int) -> Tensor:
    """True for the `count` largest; of equal ones, for the first."""
    order = torch.argsort(sizes, descending=True, stable=True)
    chosen = torch.zeros(len(sizes), dtype=torch.bool)
    chosen[order[:count]] = True
    return chosen


def _split(flat: Tensor, kernels: Mapping[str, Tensor]) -> Masks:
    parts = torch.split(flat, [kernel.numel() for kernel in kernels.values()])
    return {
        name: part.clone().view(kernel.shape)
        for (name, kernel), part in zip(kernels.items(), parts, strict=True)
    }


def pack_masks(masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Masks as bytes, a bit for each weight: what a checkpoint keeps of them."""
    return {
        name: torch.from_numpy(np.packbits(mask.flatten().numpy())) for name, mask in masks.items()
    }


def unpack_masks(packed: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> Masks:
    """The masks that `pack_masks` made of kernels with these shapes."""
    return {
        name: torch.from_numpy(
            np.unpackbits(packed[name].numpy(), count=shape.numel()).astype(bool)
        ).view(shape)
        for name, shape in shapes.items()
    }


def packed_misfit(packed: object, model: nn.Module) -> str:
    """Why packed masks cannot be those of a model; empty where they can."""
    sizes = {name: -(-model.get_parameter(name).numel() // 8) for name in kernel_names(model)}
    if not isinstance(packed, dict) or packed.keys() != sizes.keys():
        return "its masks are those of another model"
    for name, mask in packed.items():
        if not isinstance(mask, Tensor) or mask.dtype != torch.uint8:
            return "its masks are no bits"
        if tuple(mask.shape) != (sizes[name],):
            return "its masks are those of another model"
    return ""


def packed_digest(packed: Mapping[str, Tensor]) -> str:
    """A hash of packed masks: 32 hexadecimal digits."""
    state = hashlib.sha256()
    for name in sorted(packed):
        state.update(f"{name}\0{len(packed[name])}\0".encode())
        state.update(packed[name].contiguous().numpy().data)
    return state.hexdigest()[:32]


@dataclass
class Masking:
    """Keeps the pruned weights of a model in training at zero."""

    model: nn.Module
    masks: Mapping[str, Tensor]

    @classmethod
    def unpacked(cls, model: nn.Module, packed: Mapping[str, Tensor]) -> Masking:
        """The masking of a checkpoint's masks, which fit the model."""
        shapes = {name: model.get_parameter(name).shape for name in kernel_names(model)}
        return cls(model, unpack_masks(packed, shapes))

    @cached_property
    def packed(self) -> dict[str, Tensor]:
        return pack_masks(self.masks)

    def facts(self) -> dict[str, Any]:
        """How many kernel weights are kept, of how many: of all, and of each kernel."""
        layers = {name: [int(mask.sum()), mask.numel()] for name, mask in self.masks.items()}
        kept, total = kept_count(self.masks), total_count(self.masks)
        return {"kept": kept, "total": total, "layers": layers}

    @cached_property
    def _pairs(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Each kernel, with True where a weight is pruned, laid out as the weights are."""
        kernels = [self.model.get_parameter(name) for name in self.masks]
        return [
            (kernel, torch.empty_like(kernel, dtype=torch.bool).copy_(~mask))
            for kernel, mask in zip(kernels, self.masks.values(), strict=True)
        ]

    @torch.no_grad()
    def hold_gradients(self) -> None:
        """Zero the gradients of pruned weights: their norm then counts only what is trained."""
        for parameter, pruned in self._pairs:
            if parameter.grad is not None:
                parameter.grad.masked_fill_(pruned, 0)

    @torch.no_grad()
    def hold(self, optimizer: Optimizer, average: nn.Module | None = None) -> None:
        """Zero pruned weights, all that the optimiser keeps of them one by one, and their moving
        average: a copy of the model."""
        copies = dict(average.named_parameters()) if average else {}
        for name, (parameter, pruned) in zip(self.masks, self._pairs, strict=True):
            parameter.masked_fill_(pruned, 0)
            if copies:
                copies[name].masked_fill_(pruned, 0)
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value.masked_fill_(pruned, 0)
