"""A stored image that no longer decodes: stop and say where it lies, or take another in its place.

Invariants: the choice is the recipe's, so that it is the same on all ranks, and which image stands
in follows from the sample and the epoch alone. More than one image in a thousand is never borne.
Evaluation counts each image once and therefore always stops.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from stoker import chance
from stoker.data.dataset import SplitIndex
from stoker.errors import StokerError

TRIES = 1000
MOST = 0.001
"""The share of a set's images that may be damaged: a stand-in is found within a few tries."""


class Damage:
    """What was found damaged by one rank, and what is done about it."""

    def __init__(self, split: SplitIndex, substitute: bool) -> None:
        self._split, self._substitute = split, substitute
        self._known: set[int] = set()
        self._lock = threading.Lock()
        self._news: deque[str] = deque()

    def instead_of(self, sample: int, epoch: int, error: Exception) -> Iterator[int]:
        """Samples to take in place of one that does not decode, or an error with its place."""
        self._note(sample, error)
        for attempt in range(TRIES):
            other = int(chance.hash_of("instead", sample, epoch, attempt)[0] % len(self._split))
            if other not in self._known:
                yield other

    def _note(self, sample: int, error: Exception) -> None:
        if sample in self._known:
            return
        where = f"sample {sample} no longer decodes: {self._split.origin_of(sample)}: {error}"
        what_now = "the shard was changed or damaged after packing: pack again"
        if not self._substitute:
            raise StokerError(f"{where}; {what_now}") from error
        with self._lock:
            if sample not in self._known:
                self._known.add(sample)
                self._news.append(f"{where}; another image stands in for it")
            if len(self._known) > MOST * len(self._split):
                raise StokerError(
                    f"{len(self._known):,} of {len(self._split):,} images no longer decode, the "
                    f"latest: {where}; {what_now}"
                ) from error

    def news(self) -> Iterator[str]:
        """What was found since the last look."""
        while self._news:
            yield self._news.popleft()
