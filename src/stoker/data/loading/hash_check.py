"""Stored images are compared with their hashes when a loader first reads them.

Invariants: nothing is shown before it was compared once in this loader. An image that does not
match is compared again each time, so it is never shown. The marks have no lock: at worst two
threads compare the same image. Hashing releases the interpreter lock from 2 kB on.
"""

from __future__ import annotations

import threading
from hashlib import sha256

import numpy as np

from stoker.data.dataset import SplitIndex
from stoker.data.index.read import HASH_BYTES

MISMATCH = "its bytes do not match the hash in the index"


class HashCheck:
    """The images of a split that have matched their hashes. Without hashes all count as matched."""

    def __init__(self, split: SplitIndex, needed: bool = True) -> None:
        self._split, self._needed = split, needed and split.rows.has_hashes
        # Pages that are never touched take no memory: those of other machines' images.
        self._matched = np.zeros(len(split) if self._needed else 0, np.uint8).data
        self._shards = set[int]()
        self._first = np.concatenate(([0], np.cumsum(split.shard_sizes)))
        self._lock = threading.Lock()
        self.damaged: set[int] = set()
        """The samples of whole shards that do not match."""

    def check(self, sample: int, data: memoryview) -> None:
        """Raise ValueError where the stored bytes of a sample do not match its hash."""
        if not self.matches(sample, data):
            raise ValueError(MISMATCH)

    def matches(self, sample: int, data: memoryview) -> bool:
        """Whether the stored bytes of a sample match its hash, or have matched it before."""
        if self._needed and not self._matched[sample]:
            if not self._equals(sample, data):
                return False
            self._matched[sample] = 1
        return True

    def all_matched(self, samples: list[int]) -> bool:
        """Whether all of these samples have matched before."""
        return not self._needed or all(self._matched[sample] for sample in samples)

    def check_shard(self, number: int, data: memoryview) -> None:
        """Compare a whole shard once: by its own hash, and if that differs, image by image."""
        if not self._needed or number in self._shards:
            return
        with self._lock:
            if number in self._shards:
                return
            if sha256(data).hexdigest() != self._split.shards[number]["sha256"]:
                for sample in range(int(self._first[number]), int(self._first[number + 1])):
                    offset, length = self._split.offset[sample], self._split.length[sample]
                    if not self._equals(sample, data[offset : offset + length]):
                        self.damaged.add(sample)
            self._shards.add(number)

    def _equals(self, sample: int, data: memoryview) -> bool:
        expected = self._split.rows.hash_of(sample)
        return expected is not None and expected == sha256(data).digest()[:HASH_BYTES]
