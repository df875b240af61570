"""A stored image whose hash is wrong or that does not decode: stop and name it, or show another.

Invariants: the recipe makes the choice, so all ranks do the same. The substitute depends on the
sample and the epoch alone. A run stops when more than one image in a thousand is damaged.
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
"""Largest share of damaged images at which training goes on."""
ACTION = "the shard was changed or damaged after packing: pack again"


class Damage:
    """The damaged images that one rank has met."""

    def __init__(self, split: SplitIndex, substitute: bool) -> None:
        self._split, self._substitute = split, substitute
        self._samples: set[int] = set()
        self._lock = threading.Lock()
        self._messages: deque[str] = deque()

    def substitutes(self, sample: int, epoch: int, error: Exception) -> Iterator[int]:
        """Yield samples to try in place of a damaged one. Raises StokerError to stop the run."""
        self._record(sample, error)
        for attempt in range(TRIES):
            other = int(chance.hash_of("instead", sample, epoch, attempt)[0] % len(self._split))
            if other not in self._samples:
                yield other

    def _record(self, sample: int, error: Exception) -> None:
        if sample in self._samples:
            return
        fact = f"sample {sample} is damaged: {self._split.origin_of(sample)}: {error}"
        if not self._substitute:
            raise StokerError(f"{fact}; {ACTION}") from error
        with self._lock:
            if sample not in self._samples:
                self._samples.add(sample)
                self._messages.append(f"{fact}; another image is shown in its place")
            if len(self._samples) > MOST * len(self._split):
                raise StokerError(
                    f"{len(self._samples):,} of {len(self._split):,} images are damaged, the "
                    f"latest: {fact}; {ACTION}"
                ) from error

    def new_messages(self) -> Iterator[str]:
        """Yield a message for each damaged image found since the last call."""
        while self._messages:
            yield self._messages.popleft()
