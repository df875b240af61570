"""Many small raw images by one call: a call for each would cost more than its pixels.

Invariants: the bytes are those of one image at a time (`render.write_crop`). Shards are read whole
and cached while they are in use, within a memory limit. A set that needs more memory is read image
by image.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import OrderedDict
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

from stoker.data.dataset import SplitIndex
from stoker.data.loading import chunk_call
from stoker.data.loading.chunk_call import (
    COLUMNS,
    EPOCH,
    FILE,
    HEIGHT,
    LENGTH,
    NOTHING,
    OFFSET,
    SAMPLE,
    WIDTH,
    view_numbers,
)
from stoker.data.loading.crops import View, boxes
from stoker.data.loading.hash_check import HashCheck
from stoker.data.loading.order import WINDOW
from stoker.data.loading.render import Pixels, scratch, write_crop

Ints = NDArray[np.int64]

CACHE_BYTES = 512 << 20
LARGEST_SIDE = 128
"""Pixels; above this the pixels of an image cost more than a call."""
_thread = threading.local()


def cache_bytes(split: SplitIndex, lanes: int) -> int:
    """Memory of the shards that hold the current and the next windows of all lanes."""
    sizes = np.sort(split.shard_sizes[split.shard_sizes > 0])
    # As many shards as a window can reach into: the smallest ones first.
    in_window = int(np.searchsorted(np.cumsum(sizes), WINDOW))
    shards = min(lanes * (in_window + 3), len(split.shards))
    return shards * int(split.shard_bytes.max())


def suits(split: SplitIndex, lanes: int, allowed_bytes: int) -> bool:
    """Whether all images are small raw squares of one size, and the shards in use fit in memory."""
    side = split.rows.even_side
    return 0 < side <= LARGEST_SIDE and cache_bytes(split, lanes) <= allowed_bytes


def refcount_of_one_user() -> int:
    """The reference count of an object that only the calling function holds. -1 without the
    interpreter lock, where counts are not exact: no count is that small, so no buffer is reused."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return -1
    _, array = OrderedDict({0: np.empty(1)}).popitem(last=False)
    return sys.getrefcount(array)


ONE_USER = refcount_of_one_user()


class SmallImages:
    """Crops of the images of a split that `suits`."""

    def __init__(
        self,
        split: SplitIndex,
        allowed_bytes: int = CACHE_BYTES,
        hashes: HashCheck | None = None,
    ) -> None:
        self._split, self._hashes = split, hashes or HashCheck(split)
        self.side = split.rows.even_side
        self._first = np.concatenate(([0], np.cumsum(split.shard_sizes)))
        self._most = max(allowed_bytes // int(split.shard_bytes.max()), 1)
        self._shards: OrderedDict[int, Pixels] = OrderedDict()
        self._lock = threading.Lock()

    def shard(self, number: int) -> Pixels:
        """All images of a shard, as a view of its bytes."""
        began = time.perf_counter()
        with self._lock:
            if number not in self._shards:
                self._shards[number] = self._read(number, self._oldest())
            self._shards.move_to_end(number)
            images = self._shards[number]
        _thread.read_s = getattr(_thread, "read_s", 0.0) + time.perf_counter() - began
        whole = images.base
        assert whole is not None
        self._hashes.check_shard(number, whole.data[: int(self._split.shards[number]["bytes"])])
        return images

    def _oldest(self) -> Pixels | None:
        """Drop the oldest shard of a full cache. Returns its buffer, because new memory is slow,
        unless another thread still copies from it."""
        if len(self._shards) < self._most:
            return None
        _, images = self._shards.popitem(last=False)
        return images.base if sys.getrefcount(images) <= ONE_USER else None

    def _read(self, number: int, into: Pixels | None) -> Pixels:
        split, side = self._split, self.side
        first, end = int(self._first[number]), int(self._first[number + 1])
        begin = int(split.offset[first] + split.length[first]) - side * side * 3
        pitch = int(split.offset[min(first + 1, end - 1)] - split.offset[first])
        shape, strides = (end - first, side, side, 3), (pitch, side * 3, 3, 1)
        return np.ndarray(shape, np.uint8, split.whole_shard(number, into), begin, strides)

    def fill_drawn(self, samples: Ints, epochs: Ints, view: View, out: Pixels) -> float:
        """Draw the boxes of some samples and write them into `out`, by one call of the compiled
        extra; returns the seconds of reading."""
        _thread.read_s = 0.0
        split, size, raw = self._split, out.shape[1], True
        in_shards = split.shard[samples]
        shards = list(set(in_shards.tolist()))
        images = [self.shard(shard) for shard in shards]  # not reused while they are held
        numbers = np.empty(len(split.shards), np.int64)
        numbers[shards] = range(len(shards))
        rows = np.empty((len(samples), COLUMNS), np.int64)
        rows[:, FILE] = numbers[in_shards]
        rows[:, OFFSET], rows[:, LENGTH] = split.offset[samples], split.length[int(samples[0])]
        rows[:, WIDTH] = rows[:, HEIGHT] = self.side
        rows[:, SAMPLE], rows[:, EPOCH] = samples, epochs
        memory, extra = tuple(shard.base for shard in images), chunk_call.extra
        call = (rows, view_numbers(view), NOTHING, memory, out, size, extra.SHOW, raw)
        outcomes = extra.fill(*call)[0]
        read_s = float(_thread.read_s)
        if rest := [number for number, outcome in enumerate(outcomes) if outcome]:
            sides = np.full(len(rest), self.side)
            crops = boxes(view, size, samples[rest], epochs[rest], sides, sides)
            part = np.empty((len(rest), *out.shape[1:]), np.uint8)
            read_s += self.fill(samples[rest], crops.edges, crops.flip, part)
            out[rest] = part
        return read_s

    def fill(self, samples: Ints, edges: Ints, flip: NDArray[np.bool_], out: Pixels) -> float:
        """Write the boxes of some samples into `out`; returns the seconds of reading."""
        _thread.read_s = 0.0
        across, down = edges[:, 2] - edges[:, 0], edges[:, 3] - edges[:, 1]
        if out.shape[1] == self.side and (across == self.side).all() and (down == self.side).all():
            self._shift(samples, edges[:, 0], edges[:, 1], flip, out)
            return float(_thread.read_s)
        for shard, rows, numbers in self._by_shard(samples):
            images = self.shard(shard)
            for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
                write_crop(images[row], edges[number].tolist(), bool(flip[number]), out[number])
        return float(_thread.read_s)

    def _by_shard(self, samples: Ints) -> list[tuple[int, Ints, Ints]]:
        """For each shard of the samples: its number, rows in the shard, indices into `samples`."""
        shards = self._split.shard[samples]
        groups = []
        for shard in np.unique(shards).tolist():
            numbers = np.flatnonzero(shards == shard)
            groups.append((shard, samples[numbers] - self._first[shard], numbers))
        return groups

    def _shift(
        self, samples: Ints, left: Ints, top: Ints, flip: NDArray[np.bool_], out: Pixels
    ) -> None:
        """Boxes as large as the images, shifted by some pixels and mirrored outside the edge. Rows
        are selected while they are copied; columns for all images with the same shift at once."""
        side, margin = self.side, int(np.abs(left).max(initial=0))
        order = np.lexsort((left, flip))
        slots = np.empty(len(order), np.int64)
        slots[order] = np.arange(len(order))
        rows = reflected(np.arange(side) + top[:, None], side)
        copied = pixel_buffer("copied", out.shape)
        for shard, inside, numbers in self._by_shard(samples):
            copied[slots[numbers]] = self.shard(shard)[inside[:, None], rows[numbers]]
        # All images as one tall image: an operation on its columns applies to all of them.
        tall = copied.reshape(-1, side, 3)
        wide = tall
        if margin:
            wide = pixel_buffer("wide", (len(tall), side + 2 * margin, 3))
            cv2.copyMakeBorder(tall, 0, 0, margin, margin, cv2.BORDER_REFLECT_101, dst=wide)
            copied = pixel_buffer("moved", out.shape)
            tall = copied.reshape(-1, side, 3)
        keys = np.stack([flip[order], left[order]])
        cuts = [0, *(np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1).tolist()]
        for begin, end in pairwise([*cuts, len(order)]):
            lines, shift = slice(begin * side, end * side), margin + int(left[order[begin]])
            if flip[order[begin]]:
                cv2.flip(wide[lines, shift : shift + side], 1, dst=tall[lines])
            elif margin:
                tall[lines] = wide[lines, shift : shift + side]
        out[order] = copied


def pixel_buffer(name: str, shape: tuple[int, ...]) -> Pixels:
    """This thread's buffer of a name, as an array of this shape."""
    return np.ndarray(shape, np.uint8, scratch(math.prod(shape), name))


def reflected(indices: Ints, side: int) -> Ints:
    """Indices outside an edge mirrored to those inside; the edge itself is not repeated."""
    if side == 1:
        return np.zeros_like(indices)
    indices = np.abs(indices) % (2 * side - 2)
    return np.minimum(indices, 2 * side - 2 - indices)
