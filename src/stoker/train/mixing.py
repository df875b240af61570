"""Mixup and cutmix: how a sample is mixed is a hash of (seed, epoch, sample).

Invariants: partners are neighbours in the batch (0 and 1, 2 and 3, ...), and neither ranks nor
micro-batches are cut between partners: the mixed batch is the same for any world size and
micro-batch. The numbers are drawn by a decoding thread, ahead of the step; all images of a
micro-batch are mixed at once, on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stoker import chance
from stoker.recipe.recipe import Recipe

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TRIES = 8


@dataclass(frozen=True)
class MixNumbers:
    """How much of itself each image keeps (32-bit floats), and the edges of the box that cutmix
    takes from its partner."""

    share: NDArray[np.float32]
    boxes: Ints | None


@dataclass(frozen=True)
class Mix:
    """The numbers of a mix on the device."""

    share: Tensor
    boxes: Tensor | None

    @classmethod
    def of(cls, numbers: MixNumbers | None) -> Mix | None:
        """The numbers as tensors that share their memory."""
        if numbers is None:
            return None
        boxes = None if numbers.boxes is None else torch.from_numpy(numbers.boxes)
        return cls(torch.from_numpy(numbers.share), boxes)

    def part(self, begin: int, end: int) -> Mix:
        """The mix of a micro-batch."""
        return Mix(self.share[begin:end], None if self.boxes is None else self.boxes[begin:end])


@lru_cache(8)
def partners(count: int, device: torch.device) -> Tensor:
    """The index of each image's partner; the last of an odd number is its own partner."""
    return (torch.arange(count, device=device) ^ 1).clamp_(max=count - 1)


def mixes(recipe: Recipe) -> bool:
    """Whether the recipe mixes images."""
    return bool(recipe.mixup_alpha or recipe.cutmix_prob)


def draw_mix(recipe: Recipe, image_size: int, samples: Ints, epochs: Ints) -> MixNumbers | None:
    """How the recipe mixes these samples in these epochs; None if it mixes nothing."""
    if not mixes(recipe):
        return None
    cut = chance.draws(recipe.seed, samples, epochs, "cutmix")[:, 0] < recipe.cutmix_prob
    share = np.ones(len(samples))
    if recipe.mixup_alpha:
        share = beta(recipe, samples, epochs, "mixup", recipe.mixup_alpha)
    edges: Ints | None = None
    if recipe.cutmix_prob:
        kept = beta(recipe, samples, epochs, "cut", recipe.cutmix_alpha)
        edges = cut_boxes(kept, chance.draws(recipe.seed, samples, epochs, "cut at", 2), image_size)
        edges[~cut] = 0
        area = (edges[:, 2] - edges[:, 0]) * (edges[:, 3] - edges[:, 1])
        share = np.where(cut, 1 - area / image_size**2, share)
    return MixNumbers(share.astype(np.float32), edges)


def apply_mix(mix: Mix | None, images: Tensor) -> Tensor:
    """The mixed images."""
    if mix is None:
        return images
    return blend(images, partners(len(images), images.device), mix)


def blend(images: Tensor, partner: Tensor, mix: Mix) -> Tensor:
    """Images, count x 3 x height x width, mixed with their partners of these indices."""
    other = images[partner]
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


def beta(recipe: Recipe, samples: Ints, epochs: Ints, purpose: str, alpha: float) -> Floats:
    """Beta(alpha, alpha): the share of one of two equal gamma variables in their sum."""
    one, other = (gamma(recipe, samples, epochs, f"{purpose} {n}", alpha) for n in (1, 2))
    total = one + other
    return np.where(total > 0, one / np.where(total > 0, total, 1), 0.5)


def gamma(recipe: Recipe, samples: Ints, epochs: Ints, purpose: str, shape: float) -> Floats:
    """Gamma(shape) by Marsaglia and Tsang: the first of eight tries that is accepted. Each try is
    accepted with a probability above 95 %, so all eight fail once in ten billion draws."""
    drawn = chance.draws(recipe.seed, samples, epochs, purpose, 3 * _TRIES + 1)
    first, second, third = (drawn[:, n * _TRIES : (n + 1) * _TRIES] for n in range(3))
    normal = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)
    # Drawn for shape + 1, where the method is valid, and scaled down by a power of a uniform.
    d = shape + 2 / 3
    cube = np.maximum(1 + normal / np.sqrt(9 * d), 1e-12) ** 3
    good = np.log1p(-third) < normal**2 / 2 + d - d * cube + d * np.log(cube)
    chosen = np.take_along_axis(cube, good.argmax(axis=1).reshape(-1, 1), 1)[:, 0]
    return np.asarray(d * chosen * drawn[:, -1] ** (1 / shape))


def cut_boxes(kept: Floats, centre: Floats, image_size: int) -> Ints:
    """Left, top, right, bottom of a square of the area not kept, clipped at the image's edge."""
    side = np.sqrt(1 - kept) * image_size
    middle = centre * image_size
    low = np.clip(middle - side[:, None] / 2, 0, image_size).astype(np.int64)
    high = np.clip(middle + side[:, None] / 2, 0, image_size).astype(np.int64)
    return np.concatenate([low, high], axis=1)
