"""The compiled extra that decodes only a region, if it is there and agrees with the full decoder.

Invariant: with and without the extra, pixels are the same. Two versions of libjpeg-turbo might not
agree, so the extra is tried on a small picture, once, before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import simplejpeg

DecodeRegion = Callable[..., tuple[int, int] | None]
"""(bytes, width, height, left, top, right, bottom, scale, room) -> pixels a written row, and how
many of them lie left of the region; None for a kind of JPEG that needs the full decode."""

MISSING = "stoker-region is not installed: pip install ./extensions/region; crops decode faster"
DISAGREES = "stoker-region gives other pixels than simplejpeg and is not used: build it again"
SIDE, REGION = 48, (9, 7, 20, 22)
"""Of the trial: a square of three blocks of colour, and a region that cuts through them."""


def agrees(extra: Any) -> bool:
    """Whether the extra shows what the full decoder shows, at two scales of each sampling."""
    down, across = np.mgrid[0:SIDE, 0:SIDE]
    picture = np.stack([across * 5, down * 5, across * down], axis=2).astype(np.uint8)
    left, top, right, bottom = REGION
    for sampling in ("444", "422", "420", "440"):
        data = simplejpeg.encode_jpeg(picture, 90, colorsubsampling=sampling)
        for scale in (1, 2):
            least = SIDE // scale
            whole = simplejpeg.decode_jpeg(data, min_height=least, min_width=least)
            room = bytearray((bottom - top) * (right - left + extra.WIDEST) * 3)
            try:
                row, indent = extra.decode_region(data, SIDE, SIDE, *REGION, scale, room)
            except (ValueError, TypeError):
                return False
            shown = np.ndarray((bottom - top, row, 3), np.uint8, room)[:, indent:]
            if not np.array_equal(shown[:, : right - left], whole[top:bottom, left:right]):
                return False
    return True


def find() -> tuple[DecodeRegion | None, int, str]:
    """The extra's function, the most pixels by which it widens a row, or why there is none."""
    try:
        import stoker_region
    except ImportError:
        return None, 0, MISSING
    if not agrees(stoker_region):
        return None, 0, DISAGREES
    return stoker_region.decode_region, stoker_region.WIDEST, ""


decode_region, WIDEST, WHY_NOT = find()
