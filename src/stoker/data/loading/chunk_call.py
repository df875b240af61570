"""A chunk of images by one call of the compiled extra, which releases the interpreter lock once.

Invariants: the bytes of a batch, and the errors about an image, are the same with and without the
extra. It shows an image exactly as `render` does or reports that it did not: such an image is left
to Python. Images that are not compared with their hashes yet are read by one call, compared, and
shown by a second one. A thread keeps at most STORED_BYTES of stored images, or one that is larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from stoker.data.dataset import SplitIndex
from stoker.data.images import jpeg_region
from stoker.data.loading.crops import Boxes, View, boxes
from stoker.data.loading.hash_check import HashCheck
from stoker.data.loading.render import RENDERERS, Pixels, scratch, write_crop

Ints = NDArray[np.int64]
Read = Callable[[int, bytearray], memoryview]

OUTDATED = "stoker-region is an older version, which only decodes: build it again: " + (
    "pip install ./extensions/region"
)
STORED_BYTES = 2 << 20
COLUMNS = 11
"""Of a row: file, offset, length, place, width, height, left, top, right, bottom, flip."""
OFFSET, LENGTH, PLACE, WIDTH, HEIGHT, BOX, FLIP = 1, 2, 3, 4, 5, slice(6, 10), 10
SIDE, TRIAL_SIZES = 40, (40, 26, 57)
"""For the comparison: the side of a picture, and the sizes at which it is shown."""


def trial_boxes() -> Boxes:
    """Boxes inside the picture, across its edges, and of another shape than a square."""
    edges = [(0, 0, 40, 40), (3, 5, 30, 39), (-4, 2, 36, 42), (9, 0, 21, 31), (17, 20, 18, 22)]
    return Boxes(np.array(edges, np.int64), np.array([True, False, True, False, True]))


def agrees(extra: Any) -> bool:
    """Whether the extra shows small pictures as Python does: JPEGs, raw ones, and drawn boxes."""
    down, across = np.mgrid[0:SIDE, 0:SIDE]
    picture = np.stack([across * 6, down * 6, across * down], axis=2).astype(np.uint8)
    jpeg: bytes = simplejpeg.encode_jpeg(picture, 90, colorsubsampling="420")
    crops = trial_boxes()
    count = len(crops.flip)
    try:
        for codec, data in (("jpeg", jpeg), ("raw", picture.tobytes())):
            for size in TRIAL_SIZES:
                rows = np.zeros((count, COLUMNS), np.int64)
                rows[:, LENGTH], rows[:, WIDTH], rows[:, HEIGHT] = len(data), SIDE, SIDE
                rows[:, BOX], rows[:, FLIP] = crops.edges, crops.flip
                images, expected = np.zeros((2, count, size, size, 3), np.uint8)
                room = bytearray(8 * SIDE * SIDE * 3)
                call = (rows, bytearray(data), room, images, size, extra.SHOW, codec == "raw")
                if any(extra.fill(*call)[0]):
                    return False
                for edges, flip, image in zip(crops.edges, crops.flip, expected, strict=True):
                    RENDERERS[codec](memoryview(data), SIDE, SIDE, edges.tolist(), flip, image)
                if not np.array_equal(images, expected):
                    return False
        return draws_agree(extra, picture)
    except (ValueError, TypeError):
        return False


def draws_agree(extra: Any, picture: Pixels) -> bool:
    """Whether the extra draws the boxes of `crops`, and shows small images as Python does."""
    samples, epochs = np.arange(12, dtype=np.int64) * 977, np.arange(12, dtype=np.int64) % 5
    view, side = View(crop="pad", crop_pct=1.0, crop_pad=4, hflip=True, seed=-3), len(picture)
    images, expected = np.zeros((2, len(samples), side, side, 3), np.uint8)
    zeros, sides = np.zeros(len(samples), np.int64), np.full(len(samples), side)
    shards = (zeros, zeros, side)
    drawn = (view.seed & (1 << 64) - 1, samples, epochs, 0, side, view.crop_pad, True)
    if any(extra.gather_drawn((picture,), *shards, *drawn, images, side)):
        return False
    crops = boxes(view, side, samples, epochs, sides, sides)
    for edges, flip, image in zip(crops.edges, crops.flip, expected, strict=True):
        write_crop(picture, edges.tolist(), flip, image)
    given = np.concatenate([crops.edges, crops.flip[:, None]], axis=1)
    again = np.zeros_like(images)
    extra.gather((picture,), *shards, given, again, side)
    return np.array_equal(images, expected) and np.array_equal(again, expected)


def find() -> tuple[Any, str]:
    """The extra or None, and why it is None."""
    if jpeg_region.decode_region is None:
        return None, jpeg_region.WHY_NOT
    import stoker_region

    if not hasattr(stoker_region, "gather_drawn"):
        return None, OUTDATED
    return (stoker_region, "") if agrees(stoker_region) else (None, jpeg_region.DISAGREES)


extra, WHY_NOT = find()


class ChunkCall:
    """Makes chunks of the images of a split. `read` replaces reading from the split's shards."""

    def __init__(self, split: SplitIndex, hashes: HashCheck, read: Read | None = None) -> None:
        self._split, self._hashes, self._read = split, hashes, read
        self._raw = split.codec == "raw"
        self._largest = split.largest[0]

    def fill(
        self, samples: Ints, edges: Ints, flip: NDArray[np.bool_], images: Pixels
    ) -> tuple[list[int], float, float]:
        """Show the boxes of some samples. Returns which of them were not shown, counted from 0, the
        seconds of reading and their CPU time. Raises StokerError for a shard that cannot be
        opened."""
        rows = self._rows(samples, edges, flip)
        size = images.shape[1]
        room = scratch(self._room_bytes(rows, size))
        ids = samples.tolist()
        if self._read is None and self._hashes.all_matched(ids):
            steps, stored = extra.READ | extra.SHOW, scratch(self._largest, "stored")
            files = self._files(rows, samples)
            outcomes, *seconds = extra.fill(rows, stored, room, images, size, steps, self._raw)
            del files  # open until here
        else:
            outcomes, seconds = bytearray(len(ids)), [0.0, 0.0]
            for part in self._parts(rows):
                stored, *read_s = self._read_and_compare(rows[part], samples[part])
                call = (rows[part], stored, room, images[part], size, extra.SHOW, self._raw)
                outcomes[part] = extra.fill(*call)[0]
                seconds = [a + b for a, b in zip(seconds, read_s, strict=True)]
        return [number for number, outcome in enumerate(outcomes) if outcome], *seconds

    def _rows(self, samples: Ints, edges: Ints, flip: NDArray[np.bool_]) -> Ints:
        split = self._split
        rows = np.zeros((len(samples), COLUMNS), np.int64)
        rows[:, OFFSET], rows[:, LENGTH] = split.offset[samples], split.length[samples]
        rows[:, WIDTH], rows[:, HEIGHT] = split.widths[samples], split.heights[samples]
        rows[:, BOX], rows[:, FLIP] = edges, flip
        return rows

    def _room_bytes(self, rows: Ints, size: int) -> int:
        """Bytes of the largest decoded region, and of a box with its mirrored edges."""
        left, top, right, bottom = rows[:, BOX].T
        across, down = right - left, bottom - top
        outside = (left < 0) | (top < 0) | (right > rows[:, WIDTH]) | (bottom > rows[:, HEIGHT])
        pixels = np.where(outside, across * down, 0)
        if not self._raw:
            times = np.maximum(np.minimum(across, down) // size, 1)
            scale = 1 << np.minimum(np.log2(times).astype(np.int64), 3)
            wide = np.where(outside, rows[:, WIDTH], across) // scale + 2 + jpeg_region.WIDEST
            high = np.where(outside, rows[:, HEIGHT], down) // scale + 2
            pixels += wide * high
        return int(pixels.max()) * 3

    def _files(self, rows: Ints, samples: Ints) -> list[Any]:
        """Write the files of the samples into their rows; they are open while the list exists."""
        shards = self._split.shard[samples].tolist()
        opened = {shard: self._split.open_shard(shard) for shard in set(shards)}
        rows[:, 0] = [opened[shard].handle for shard in shards]
        return list(opened.values())

    def _parts(self, rows: Ints) -> Iterator[slice]:
        """Parts of a chunk whose stored bytes are at most STORED_BYTES, or single images."""
        begin, total = 0, 0
        for number, length in enumerate(rows[:, LENGTH].tolist()):
            if total + length > STORED_BYTES and number > begin:
                yield slice(begin, number)
                begin, total = number, 0
            rows[number, PLACE] = total
            total += length
        yield slice(begin, len(rows))

    def _read_and_compare(self, rows: Ints, samples: Ints) -> tuple[bytearray, float, float]:
        """The stored bytes of some samples, seconds of reading, and their CPU time. The row of an
        image that cannot be read or does not match its hash gets a length of 0: it is not shown."""
        stored = scratch(int(rows[-1, PLACE] + rows[-1, LENGTH]), "stored")
        view, ids, seconds = memoryview(stored), samples.tolist(), [0.0, 0.0]
        if self._read is None:
            files, nothing = self._files(rows, samples), bytearray(len(ids) * 3)
            outcomes, *seconds = extra.fill(rows, stored, nothing, nothing, 1, extra.READ, False)
            del files
        else:
            outcomes = bytearray(len(ids))
        for number, sample in enumerate(ids):
            length, place = rows[number, LENGTH], rows[number, PLACE]
            data = view[place : place + length]
            if self._read is not None:
                data[:] = self._read(sample, scratch(self._largest, "single"))
            if outcomes[number] or not self._hashes.matches(sample, data):
                rows[number, LENGTH] = 0
        return stored, seconds[0], seconds[1]
