"""Whether a set has enough images, and its images enough pixels, for the sizes of a recipe.

Invariant: pure functions of the index, the recipe and the settings of packing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stoker.data.dataset import SplitIndex
from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.text import plural

MOST_ENLARGED = 16
"""Images whose side is enlarged more often than this have nothing to learn from at that size."""


def check_sizes(recipe: Recipe, split: SplitIndex) -> None:
    """Raise BadRequest for a batch of more images than there are, and for images that would be
    enlarged too much."""
    phases = recipe.phases or (recipe,)
    batch, size = (max(getattr(p, name) for p in phases) for name in ("batch_size", "image_size"))
    if batch > len(split):
        raise BadRequest(
            f"a batch of {batch:,} images is more than the training set, which has "
            f"{plural(len(split), 'image')}: lower --batch-size"
        )
    side = max(float(np.median(np.minimum(*split.rows.some_sizes()))), 1.0)
    if size > MOST_ENLARGED * side:
        raise BadRequest(
            f"image_size = {size:,} enlarges the images {size / side:.0f} times: their shorter "
            f"side has {side:.0f} px (median), and {MOST_ENLARGED} times is the most: lower "
            "--image-size"
        )


def enlarged_note(split: SplitIndex, storage: Mapping[str, Any], image_size: int) -> str | None:
    """A note where more than half of the images must be enlarged to `image_size`; else None."""
    widths, heights = split.rows.some_sizes()
    shorter = np.minimum(widths, heights)
    if not len(shorter) or np.mean(shorter < image_size) <= 0.5:
        return None
    remedy = "lower --image-size"
    by_shorter = storage.get("min_side")
    limit = storage.get("min_side") or storage.get("max_side")
    sides = shorter if by_shorter else np.maximum(widths, heights)
    if split.codec != "original" and limit and np.mean(sides == limit) >= 0.5:
        flag = "--min-side" if by_shorter else "--max-side"
        remedy += f", or pack the images again with {flag} above {limit}"
    return (
        f"image_size = {image_size} is above what is stored: the images of {split.name} "
        f"have a shorter side of {int(np.median(shorter))} px (median) and are enlarged: {remedy}"
    )
