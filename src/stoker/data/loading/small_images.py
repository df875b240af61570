"""Many small raw images at once, where a call of Python for each would cost more than its pixels.

Invariants: the same bytes as one image at a time (`decode.place`). Shards are read whole and kept
while they are in use, within a bound; sets that would not fit into it go the other way.
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
from stoker.data.loading.order import WINDOW
from stoker.data.loading.render import Pixels, place

Ints = NDArray[np.int64]

CACHE_BYTES = 512 << 20
_own = threading.local()
LARGEST_SIDE = 128
"""Above this the pixels cost more than the calls."""


def shards_in_use(split: SplitIndex, lanes: int) -> int:
    """How many shards the windows of all lanes, and those that follow, lie in."""
    smallest = int(split.shard_sizes.min(initial=1))
    return min(lanes * (WINDOW // max(smallest, 1) + 3), len(split.shards))


def cache_bytes(split: SplitIndex, lanes: int) -> int:
    """What keeping them takes."""
    return shards_in_use(split, lanes) * max(int(shard["bytes"]) for shard in split.shards)


def suits(split: SplitIndex, lanes: int, room: int) -> bool:
    """Whether all images are small, raw and of one size, and their shards fit into the room."""
    if split.codec != "raw" or not len(split):
        return False
    side, length = int(split.widths[0]), int(split.length[0])
    square = (split.widths == side).all() and (split.heights == side).all()
    even = (split.length == length).all() and evenly_spaced(split)
    return bool(square and even) and side <= LARGEST_SIDE and cache_bytes(split, lanes) <= room


def evenly_spaced(split: SplitIndex) -> bool:
    apart = np.diff(split.offset)[np.diff(split.shard) == 0]
    return bool((apart == apart[0]).all()) if len(apart) else True


def held_by_nobody_else() -> int:
    """What this interpreter counts for a thing that only the asking function holds; less than that
    is never counted, which is to say: where counting does not tell, nothing is used again."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return -1
    _, thing = OrderedDict({0: np.empty(1)}).popitem(last=False)
    return sys.getrefcount(thing)


ONLY_HERE = held_by_nobody_else()


class SmallImages:
    """The images of a split that `suits`."""

    def __init__(self, split: SplitIndex, room: int = CACHE_BYTES) -> None:
        self._split = split
        self.side = int(split.widths[0])
        self._first = np.concatenate(([0], np.cumsum(split.shard_sizes)))
        self._most = max(room // max(int(shard["bytes"]) for shard in split.shards), 1)
        self._kept: OrderedDict[int, Pixels] = OrderedDict()
        self._lock = threading.Lock()

    def shard(self, number: int) -> Pixels:
        """All images of a shard, in its own bytes."""
        asked = time.perf_counter()
        with self._lock:
            if number not in self._kept:
                self._kept[number] = self._read(number, self._oldest())
            self._kept.move_to_end(number)
            _own.read_s = getattr(_own, "read_s", 0.0) + time.perf_counter() - asked
            return self._kept[number]

    def _oldest(self) -> Pixels | None:
        """The buffer of the shard that was longest not used, where there are enough: fresh memory
        is dear. Not while another thread still copies from it."""
        if len(self._kept) < self._most:
            return None
        _, images = self._kept.popitem(last=False)
        return images.base if sys.getrefcount(images) <= ONLY_HERE else None

    def _read(self, number: int, into: Pixels | None) -> Pixels:
        split, side = self._split, self.side
        first, end = int(self._first[number]), int(self._first[number + 1])
        begin = int(split.offset[first] + split.length[first]) - side * side * 3
        pitch = int(split.offset[min(first + 1, end - 1)] - split.offset[first])
        shape, strides = (end - first, side, side, 3), (pitch, side * 3, 3, 1)
        return np.ndarray(shape, np.uint8, split.whole_shard(number, into), begin, strides)

    def fill(self, samples: Ints, edges: Ints, flip: NDArray[np.bool_], out: Pixels) -> float:
        """Put the boxes of some samples into their places; the seconds that went into reading."""
        _own.read_s = 0.0
        across, down = edges[:, 2] - edges[:, 0], edges[:, 3] - edges[:, 1]
        if out.shape[1] == self.side and (across == self.side).all() and (down == self.side).all():
            self._shift(samples, edges[:, 0], edges[:, 1], flip, out)
            return float(_own.read_s)
        for number, rows, places in self._by_shard(samples):
            images = self.shard(number)
            for row, at in zip(rows.tolist(), places.tolist(), strict=True):
                place(images[row], edges[at].tolist(), bool(flip[at]), out[at])
        return float(_own.read_s)

    def _by_shard(self, samples: Ints) -> list[tuple[int, Ints, Ints]]:
        """Shard, rows in it and places in the batch, of the samples."""
        shards = self._split.shard[samples]
        found = []
        for number in np.unique(shards).tolist():
            places = np.flatnonzero(shards == number)
            found.append((number, samples[places] - self._first[number], places))
        return found

    def _shift(
        self, samples: Ints, left: Ints, top: Ints, flip: NDArray[np.bool_], out: Pixels
    ) -> None:
        """Boxes as large as the images, moved by some pixels, mirrored beyond the edge: rows are
        chosen while they are copied, columns for all images with the same move together."""
        side, beyond = self.side, int(np.abs(left).max(initial=0))
        order = np.lexsort((left, flip))
        ranked = np.empty(len(order), np.int64)
        ranked[order] = np.arange(len(order))
        rows = reflected(np.arange(side) + top[:, None], side)
        copied = scratch("copied", out.shape)
        for number, inside, places in self._by_shard(samples):
            copied[ranked[places]] = self.shard(number)[inside[:, None], rows[places]]
        # One tall image of all: what is done to its columns is done to all images.
        tall = copied.reshape(-1, side, 3)
        wide = tall
        if beyond:
            wide = scratch("wide", (len(tall), side + 2 * beyond, 3))
            cv2.copyMakeBorder(tall, 0, 0, beyond, beyond, cv2.BORDER_REFLECT_101, dst=wide)
            copied = scratch("moved", out.shape)
            tall = copied.reshape(-1, side, 3)
        keys = np.stack([flip[order], left[order]])
        cuts = [0, *(np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1).tolist()]
        for begin, end in pairwise([*cuts, len(order)]):
            lines, shift = slice(begin * side, end * side), beyond + int(left[order[begin]])
            if flip[order[begin]]:
                cv2.flip(wide[lines, shift : shift + side], 1, dst=tall[lines])
            elif beyond:
                tall[lines] = wide[lines, shift : shift + side]
        out[order] = copied


def scratch(name: str, shape: tuple[int, ...]) -> Pixels:
    """This thread's buffer of a name, used again and again."""
    size = math.prod(shape)
    kept: Pixels | None = getattr(_own, name, None)
    if kept is None or len(kept) < size:
        kept = np.empty(size, np.uint8)
        setattr(_own, name, kept)
    return kept[:size].reshape(shape)


def reflected(places: Ints, side: int) -> Ints:
    """Places beyond an edge mirrored to those inside; the edge itself is not repeated."""
    if side == 1:
        return np.zeros_like(places)
    places = np.abs(places) % (2 * side - 2)
    return np.minimum(places, 2 * side - 2 - places)
