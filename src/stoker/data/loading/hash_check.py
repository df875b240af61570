"""Stored images are compared with their hashes when a loader first reads them.

Invariants: nothing is shown before it was compared once in this loader. An image that does not
match is compared again each time, so it is never shown. The marks have no lock: at worst two
threads compare the same image. Hashing releases the interpreter lock from 2 kB on.
"""

from __future__ import annotations

import threading
from hashlib import sha256
from itertools import accumulate

from stoker.data.dataset import SplitIndex
from stoker.data.index import HASH_BYTES

MISMATCH = "its bytes do not match the hash in the index"


class HashCheck:
    """The images of a split that have matched their hashes. Without hashes all count as matched."""

    def __init__(self, split: SplitIndex, needed: bool = True) -> None:
        self._split, self._hashes = split, split.hashes
        needed = needed and split.hashes is not None
        self._matched = bytearray(len(split)) if needed else bytearray(b"\1" * len(split))
        self._shards = set[int]() if needed else set(range(len(split.shards)))
        self._first = [0, *accumulate(int(shard["images"]) for shard in split.shards)]
        self._lock = threading.Lock()
        self.damaged: set[int] = set()
        """The samples of whole shards that do not match."""

    def check(self, sample: int, data: memoryview) -> None:
        """Raise ValueError where the stored bytes of a sample do not match its hash."""
        if not self.matches(sample, data):
            raise ValueError(MISMATCH)

    def matches(self, sample: int, data: memoryview) -> bool:
        """Whether the stored bytes of a sample match its hash, or have matched it before."""
        if not self._matched[sample]:
            if not self._equals(sample, data):
                return False
            self._matched[sample] = 1
        return True

    def all_matched(self, samples: list[int]) -> bool:
        """Whether all of these samples have matched before."""
        return all(self._matched[sample] for sample in samples)

    def check_shard(self, number: int, data: memoryview) -> None:
        """Compare a whole shard once: by its own hash, and if that differs, image by image."""
        if number in self._shards:
            return
        with self._lock:
            if number in self._shards:
                return
            if sha256(data).hexdigest() != self._split.shards[number]["sha256"]:
                for sample in range(self._first[number], self._first[number + 1]):
                    offset, length = self._split.offset[sample], self._split.length[sample]
                    if not self._equals(sample, data[offset : offset + length]):
                        self.damaged.add(sample)
            self._shards.add(number)

    def _equals(self, sample: int, data: memoryview) -> bool:
        assert self._hashes is not None
        begin = sample * HASH_BYTES
        return sha256(data).digest()[:HASH_BYTES] == self._hashes[begin : begin + HASH_BYTES]
