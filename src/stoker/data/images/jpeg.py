"""Encode pixels as the JPEG that is stored, with 4:2:0 colour subsampling as photographs have."""

from __future__ import annotations

import io

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from stoker.data.images.jpeg_rows import add_table

RESTART_ROWS = 1
"""Rows of blocks between restart markers: 1 costs no more than a larger number."""


def encode_jpeg(pixels: NDArray[np.uint8], quality: int, restart_rows: int = RESTART_ROWS) -> bytes:
    """A JPEG whose rows can be cut out without decoding; 0 restart rows: one without markers."""
    if restart_rows == 0:
        plain: bytes = simplejpeg.encode_jpeg(
            np.ascontiguousarray(pixels), quality=quality, colorsubsampling="420"
        )
        return plain
    file = io.BytesIO()
    Image.fromarray(pixels).save(
        file, "JPEG", quality=quality, subsampling="4:2:0", restart_marker_rows=restart_rows
    )
    return add_table(file.getvalue())
