"""A chunk of images by one call of the compiled extra, which releases the interpreter lock once.

Invariants: the bytes of a batch, and the errors about an image, are the same with and without the
extra. The call draws the boxes that `crops` draws and shows an image exactly as `render` does, or
reports that it did not: such an image is left to Python. Images that are not compared with their
hashes yet are read by one call, compared, and shown by a second one. A thread keeps at most
STORED_BYTES of stored images, or one that is larger.
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
from stoker.data.loading.render import RENDERERS, Pixels, scratch
from stoker.data.shards import OpenShard

Ints = NDArray[np.int64]
Read = Callable[[int, bytearray], memoryview]

OUTDATED = (
    "stoker-region is an older version, which only decodes crops: build it again: "
    "pip install ./extensions/region"
)
STORED_BYTES = 2 << 20
COLUMNS = 13
"""Of a row, in this order; the last ones are the box and whether it is mirrored."""
FILE, OFFSET, LENGTH, PLACE, WIDTH, HEIGHT, SAMPLE, EPOCH, BOX, FLIP = (
    *range(8),
    slice(8, 12),
    12,
)
CROPS = {"centre": 0, "pad": 1, "resized": 2}
NOTHING = bytearray(1)
SIDE, TRIAL_SIZES = 40, (40, 26, 57)
"""For the comparison: the side of a picture, and the sizes at which it is shown."""


def view_numbers(view: View) -> tuple[Any, ...]:
    """A view as the extra takes it."""
    scale, pad, pct = view.crop_scale, view.crop_pad, view.crop_pct
    return CROPS[view.crop], view.hflip, scale, pad, pct, view.seed & (1 << 64) - 1


def trial_rows() -> Ints:
    """Boxes inside a picture, across its edges, and of another shape than a square."""
    edges = [(0, 0, 40, 40), (3, 5, 30, 39), (-4, 2, 36, 42), (9, 0, 21, 31), (17, 20, 18, 22)]
    rows = np.zeros((len(edges), COLUMNS), np.int64)
    rows[:, WIDTH] = rows[:, HEIGHT] = SIDE
    rows[:, BOX], rows[:, FLIP] = edges, [1, 0, 1, 0, 1]
    rows[:, SAMPLE], rows[:, EPOCH] = np.arange(len(edges)) * 977, np.arange(len(edges)) % 3
    return rows


def agrees(extra: Any) -> bool:
    """Whether the extra shows a small picture as Python does, with given and with drawn boxes."""
    down, across = np.mgrid[0:SIDE, 0:SIDE]
    picture = np.stack([across * 6, down * 6, across * down], axis=2).astype(np.uint8)
    jpeg: bytes = simplejpeg.encode_jpeg(picture, 90, colorsubsampling="420")
    pad, resized = (View(crop, 0.2, hflip=True, seed=-3) for crop in ("pad", "resized"))
    trials = [("raw", 40, pad), ("raw", 57, resized), *(("raw", s, None) for s in TRIAL_SIZES)]
    try:
        return all(
            trial_agrees(extra, codec, jpeg if codec == "jpeg" else picture.tobytes(), size, view)
            for codec, size, view in [*trials, *(("jpeg", s, None) for s in TRIAL_SIZES)]
        )
    except (ValueError, TypeError):
        return False


def trial_agrees(extra: Any, codec: str, data: bytes, size: int, view: View | None) -> bool:
    rows = trial_rows()
    rows[:, LENGTH] = len(data)
    crops = Boxes(rows[:, BOX], rows[:, FLIP] > 0)
    if view is not None:
        columns = (rows[:, column] for column in (SAMPLE, EPOCH, WIDTH, HEIGHT))
        crops = boxes(view, size, *columns)
    images, expected = np.zeros((2, len(rows), size, size, 3), np.uint8)
    numbers = view and view_numbers(view)
    call = (rows, numbers, bytearray(data), None, images, size, extra.SHOW, codec == "raw")
    for outcome, edges, flip, image in zip(
        extra.fill(*call)[0], crops.edges, crops.flip, expected, strict=True
    ):
        if outcome:
            return False
        RENDERERS[codec](memoryview(data), SIDE, SIDE, edges.tolist(), bool(flip), image)
    return np.array_equal(images, expected)


def find() -> tuple[Any, str]:
    """The extra or None, and why it is None."""
    if jpeg_region.decode_region is None:
        return None, jpeg_region.WHY_NOT
    import stoker_region

    if not hasattr(stoker_region, "fill"):
        return None, OUTDATED
    return (stoker_region, "") if agrees(stoker_region) else (None, jpeg_region.DISAGREES)


extra, WHY_NOT = find()


class ChunkCall:
    """Makes chunks of the images of a split. `read` replaces reading from the split's shards."""

    def __init__(
        self, split: SplitIndex, view: View, hashes: HashCheck, read: Read | None = None
    ) -> None:
        self._split, self._hashes, self._read = split, hashes, read
        self._view, self._raw = view_numbers(view), split.codec == "raw"
        self._largest = split.largest[0]

    def fill(self, samples: Ints, epochs: Ints, images: Pixels) -> tuple[list[int], float, float]:
        """Show some samples in their epochs. Returns which of them were not shown, counted from 0,
        the seconds of reading and their CPU time. Raises StokerError for a shard that cannot be
        opened."""
        split, size = self._split, images.shape[1]
        rows = np.empty((len(samples), COLUMNS), np.int64)
        rows[:, OFFSET], rows[:, LENGTH] = split.offset[samples], split.length[samples]
        rows[:, WIDTH], rows[:, HEIGHT] = split.widths[samples], split.heights[samples]
        rows[:, SAMPLE], rows[:, EPOCH], rows[:, PLACE] = samples, epochs, 0
        ids = samples.tolist()
        files = None if self._read else self._open(rows, ids)
        if files is not None and self._hashes.all_matched(ids):
            steps, stored = extra.READ | extra.SHOW, scratch(self._largest, "stored")
            outcomes, *seconds = extra.fill(
                rows, self._view, stored, None, images, size, steps, self._raw
            )
        else:
            outcomes, seconds = bytearray(len(ids)), [0.0, 0.0]
            for part in self._parts(rows):
                stored, *read_s = self._read_and_compare(rows[part], ids[part], files is not None)
                call = (rows[part], self._view, stored, None, images[part], size, extra.SHOW)
                outcomes[part] = extra.fill(*call, self._raw)[0]
                seconds = [a + b for a, b in zip(seconds, read_s, strict=True)]
        del files  # open until here
        return [number for number, outcome in enumerate(outcomes) if outcome], *seconds

    def _open(self, rows: Ints, samples: list[int]) -> list[OpenShard] | None:
        """Write the files of the samples into their rows; they are open while the list exists. None
        where a shard is not a file of this machine."""
        shards = self._split.shard[samples].tolist()
        opened = {shard: self._split.source.open(shard) for shard in set(shards)}
        files = [file for file in opened.values() if file is not None]
        if len(files) < len(opened):
            return None
        handles = {shard: file.handle for shard, file in zip(opened, files, strict=True)}
        rows[:, FILE] = [handles[shard] for shard in shards]
        return files

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

    def _read_and_compare(
        self, rows: Ints, samples: list[int], opened: bool
    ) -> tuple[bytearray, float, float]:
        """The stored bytes of some samples, seconds of reading, and their CPU time. The row of an
        image that cannot be read or does not match its hash gets a length of 0: it is not shown.
        `opened`: the rows have the files."""
        read = None if opened else self._read or self._split.bytes_of
        stored = scratch(int(rows[-1, PLACE] + rows[-1, LENGTH]), "stored")
        view, outcomes, seconds = memoryview(stored), bytearray(len(samples)), [0.0, 0.0]
        if read is None:
            no_pixels = bytearray(3 * len(samples))
            outcomes, *seconds = extra.fill(
                rows, None, stored, None, no_pixels, 1, extra.READ, self._raw
            )
        for number, sample in enumerate(samples):
            place = int(rows[number, PLACE])
            data = view[place : place + int(rows[number, LENGTH])]
            if read is not None:
                data[:] = read(sample, scratch(self._largest, "single"))
            if outcomes[number] or not self._hashes.matches(sample, data):
                rows[number, LENGTH] = 0
        return stored, seconds[0], seconds[1]
