"""The compiled extra that decodes only a region, if it is installed and gives the right pixels.

Invariant: pixels are the same with and without the extra. Two versions of libjpeg-turbo could
differ, so that the extra is compared with the full decoder on a small picture before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import simplejpeg

DecodeRegion = Callable[..., tuple[int, int] | None]
"""(bytes, width, height, left, top, right, bottom, scale, buffer) -> pixels per written row, and
how many of them are left of the region; None for a kind of JPEG that needs the full decode."""

MISSING = (
    "stoker-region is not installed: pip install ./extensions/region; elsewhere it made 1.3 times "
    "as many photographs a CPU second (benchmarks/loader.py)"
)
DISAGREES = "stoker-region gives other pixels than simplejpeg and is not used: build it again"
SIDE, REGION = 48, (9, 7, 20, 22)
"""For the comparison: a square of three colour blocks, and a region that cuts through them."""


def agrees(extra: Any) -> bool:
    """Whether the extra gives the full decoder's pixels, at two scales of each sampling."""
    down, across = np.mgrid[0:SIDE, 0:SIDE]
    picture = np.stack([across * 5, down * 5, across * down], axis=2).astype(np.uint8)
    left, top, right, bottom = REGION
    for sampling in ("444", "422", "420", "440"):
        data = simplejpeg.encode_jpeg(picture, 90, colorsubsampling=sampling)
        for scale in (1, 2):
            side = SIDE // scale
            whole = simplejpeg.decode_jpeg(data, min_height=side, min_width=side)
            buffer = bytearray((bottom - top) * (right - left + extra.WIDEST) * 3)
            try:
                row, indent = extra.decode_region(data, SIDE, SIDE, *REGION, scale, buffer)
            except (ValueError, TypeError):
                return False
            pixels = np.ndarray((bottom - top, row, 3), np.uint8, buffer)[:, indent:]
            if not np.array_equal(pixels[:, : right - left], whole[top:bottom, left:right]):
                return False
    return True


def find() -> tuple[DecodeRegion | None, int, str]:
    """The extra's function or None, the most pixels by which it widens a row, why it is None."""
    try:
        import stoker_region
    except ImportError:
        return None, 0, MISSING
    if not agrees(stoker_region):
        return None, 0, DISAGREES
    return stoker_region.decode_region, stoker_region.WIDEST, ""


decode_region, WIDEST, WHY_NOT = find()
