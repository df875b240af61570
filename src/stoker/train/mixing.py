"""Mixup and cutmix, counted: what happens to a sample is a hash of (seed, epoch, sample).

Invariants: partners are neighbours (0 and 1, 2 and 3, ...) in the batch's own arrangement, which
parts and micro-batches never cut between; so the mixed batch is the same for any world size and
micro-batch. All images of a batch are mixed at once, on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stoker.data import chance
from stoker.recipe.recipe import Recipe

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TRIES = 32


@dataclass(frozen=True)
class Mix:
    """How much of itself each image keeps, and the box that cutmix takes from its partner."""

    share: Tensor
    boxes: Tensor | None


def partners(count: int, device: torch.device) -> Tensor:
    """Each image's neighbour; the last of an odd number is its own."""
    return (torch.arange(count, device=device) ^ 1).clamp_(max=count - 1)


def draw_mix(
    recipe: Recipe, image_size: int, samples: Ints, epochs: Ints, device: torch.device
) -> Mix | None:
    """What the recipe does to these samples in these epochs; None where it mixes nothing."""
    if not (recipe.mixup_alpha or recipe.cutmix_prob):
        return None
    cut = uniform(recipe, samples, epochs, "cutmix")[:, 0] < recipe.cutmix_prob
    share = np.ones(len(samples))
    if recipe.mixup_alpha:
        share = beta(recipe, samples, epochs, "mixup", recipe.mixup_alpha)
    boxes = None
    if recipe.cutmix_prob:
        kept = beta(recipe, samples, epochs, "cut", recipe.cutmix_alpha)
        edges = cut_boxes(kept, uniform(recipe, samples, epochs, "cut at", 2), image_size)
        edges[~cut] = 0
        area = (edges[:, 2] - edges[:, 0]) * (edges[:, 3] - edges[:, 1])
        share = np.where(cut, 1 - area / image_size**2, share)
        boxes = torch.from_numpy(edges).to(device)
    return Mix(torch.from_numpy(share.astype(np.float32)).to(device), boxes)


def apply_mix(mix: Mix | None, images: Tensor) -> Tensor:
    """The mixed images."""
    if mix is None:
        return images
    other = images[partners(len(images), images.device)]
    share = mix.share[:, None, None, None].to(images.dtype)
    if mix.boxes is None:
        return torch.lerp(other, images, share)
    side = torch.arange(images.shape[-1], device=images.device)
    left, top, right, bottom = (mix.boxes[:, edge, None] for edge in range(4))
    across = (side >= left) & (side < right)
    down = (side >= top) & (side < bottom)
    inside = (down[:, None, :, None]) & (across[:, None, None, :])
    is_cut = (right > left)[:, :, None, None]
    blended = torch.where(is_cut, images, torch.lerp(other, images, share))
    return torch.where(inside, other, blended)


def uniform(recipe: Recipe, samples: Ints, epochs: Ints, purpose: str, count: int = 1) -> Floats:
    columns = np.arange(count)[None, :]
    return chance.uniform(
        chance.hash_of(recipe.seed, epochs[:, None], samples[:, None], purpose, columns)
    )


def beta(recipe: Recipe, samples: Ints, epochs: Ints, purpose: str, alpha: float) -> Floats:
    """Beta(alpha, alpha) by Johnk's method: the first of some pairs that is accepted."""
    drawn = uniform(recipe, samples, epochs, purpose, 2 * _TRIES) ** (1 / alpha)
    x, total = drawn[:, :_TRIES], drawn[:, :_TRIES] + drawn[:, _TRIES:]
    good = (total <= 1) & (total > 0)
    first = good.argmax(axis=1).reshape(-1, 1)
    ratio = np.take_along_axis(x / np.where(total > 0, total, 1), first, 1)[:, 0]
    return np.where(good.any(axis=1), ratio, 0.5)


def cut_boxes(kept: Floats, centre: Floats, image_size: int) -> Ints:
    """Left, top, right, bottom of a square of the area not kept, clipped at the image's edge."""
    side = np.sqrt(1 - kept) * image_size
    middle = centre * image_size
    low = np.clip(middle - side[:, None] / 2, 0, image_size).astype(np.int64)
    high = np.clip(middle + side[:, None] / 2, 0, image_size).astype(np.int64)
    return np.concatenate([low, high], axis=1)
