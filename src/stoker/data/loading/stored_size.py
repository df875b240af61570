"""Whether the stored images have enough pixels for the size that a model is given.

Invariant: a pure function of the index and the settings of packing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stoker.data.dataset import SplitIndex


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
