"""The bytes of an image file become the pixels that the model would get of its packed copy.

Invariants: an image is rejected here where packing rejects it, for the same reason. The pixels are
those that evaluation has of the packed image, bit for bit: the same decoder, the same shrinking to
the stored size, the same JPEG in memory where packing would write one, the same crop. A large file
or image is handled by one thread at a time, so memory is bounded.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stoker.data.images.decode_any import Rejected, decode, open_image
from stoker.data.images.encode import Storage, encode, fit
from stoker.data.loading.crops import centre_boxes, dct_scale
from stoker.data.loading.render import RENDERERS, write_crop
from stoker.data.packing.shard import LARGE_PIXELS, read_bounded
from stoker.data.sources.item import Item, one_reason
from stoker.errors import StokerError

Pixels = NDArray[np.uint8]

LARGE_BYTES = 32 << 20
"""Files larger than this are read by one thread at a time."""


@dataclass(frozen=True)
class Preparation:
    """How files are made into the model's input. Threads may share one."""

    storage: Storage
    crop_pct: float
    _large: AbstractContextManager[object] = field(default_factory=threading.RLock, repr=False)
    """Held by the one thread that handles a large image."""

    def fill(self, item: Item, out: Pixels) -> str | None:
        """Write an image into its place in a batch. Returns why that is not possible, and leaves
        black pixels, or None."""
        try:
            if item.reason is not None:
                raise Rejected(item.reason)
            with self._turn(item):
                self._render(item.data if item.data is not None else read(item.name), out)
            return None
        except Rejected as error:
            reason = str(error)
        except (ValueError, MemoryError, cv2.error) as error:
            reason = one_reason(error)
        out[...] = 0
        return reason

    def _turn(self, item: Item) -> AbstractContextManager[object]:
        """The lock for a large file; for another nothing."""
        if item.data is not None:
            return nullcontext()
        try:
            return self._large if Path(item.name).stat().st_size > LARGE_BYTES else nullcontext()
        except (OSError, ValueError):
            return nullcontext()  # reading it says why

    def _render(self, data: bytes, out: Pixels) -> None:
        opened = open_image(data)
        large = opened.width * opened.height > LARGE_PIXELS
        with self._large if large else nullcontext():
            image = decode(data, opened)
            pixels = fit(image.pixels, self.storage)
            height, width = pixels.shape[:2]
            sides = np.array([width], np.float64), np.array([height], np.float64)
            box: list[int] = centre_boxes(self.crop_pct, *sides)[0].tolist()
            if self.storage.codec == "raw":
                write_crop(pixels, box, False, out)
                return
            stored = encode(data, image, pixels, self.storage)
            scale = dct_scale(box[2] - box[0], box[3] - box[1], out.shape[0])
            if stored is data and scale == 1:
                write_crop(pixels, box, False, out)  # what decoding it once more would give
            else:
                RENDERERS[self.storage.codec](memoryview(stored), width, height, box, False, out)


def read(path: str) -> bytes:
    """A file's bytes. Raises Rejected where it cannot be read."""
    try:
        return read_bounded(path)
    except StokerError as error:  # an error of the moment, on which packing would stop
        reason = getattr(error.__cause__, "strerror", None) or "try again"
        raise Rejected(f"cannot read: {reason}") from error
