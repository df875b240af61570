"""Which sample is at global position P: a pure function.

Invariants, for any shard sizes, lanes, window, batch and world size:
- positions e*N .. (e+1)*N - 1 are epoch e, and hold each of the N samples exactly once;
- the sample at P depends on (fingerprint, seed, epoch, P) and on nothing else: not on the world
  size, the threads, or how often the run was killed;
- in each epoch shards are permuted, concatenated and cut into L contiguous lanes; position P
  belongs to lane P mod L, and within a lane samples are shuffled inside windows;
- a batch is arranged lane by lane, so that cutting it into contiguous parts gives a rank whole
  lanes wherever the numbers divide, and the union of the parts is the same for every world size.

Memory is O(shards) and some windows, whatever the number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stoker import chance

Ints = NDArray[np.int64]

WINDOW = 4096
MAX_LANES = 64
_WINDOWS_KEPT = 4 * MAX_LANES


def lanes_for(samples: int, batch_sizes: list[int], window: int = WINDOW) -> int:
    """The largest power of two that leaves a lane at least a window long and divides half of every
    batch, so that parts of a batch end where lanes end."""
    lanes = 1
    while (
        2 * lanes <= MAX_LANES
        and samples // (2 * lanes) >= window
        and all(size % (4 * lanes) == 0 for size in batch_sizes)
    ):
        lanes *= 2
    return lanes


@dataclass(frozen=True)
class EpochPlan:
    """One epoch's shards in their permuted order, and where lanes begin in that sequence."""

    shards: Ints
    starts: Ints
    """Offset of each shard's first sample in the sequence; one more entry for the end."""
    lane_starts: Ints
    """Offset of each lane's first sample in the sequence; one more entry for the end."""
    lane_first: Ints
    """Each lane's first position in the epoch."""


@dataclass
class Order:
    """The order of all epochs over shards of the given sizes."""

    shard_sizes: Ints
    fingerprint: str
    seed: int
    lanes: int = 1
    window: int = WINDOW

    def __post_init__(self) -> None:
        self.shard_sizes = np.asarray(self.shard_sizes, dtype=np.int64)
        self.samples = int(self.shard_sizes.sum())
        self._first_of_shard = np.concatenate(([0], np.cumsum(self.shard_sizes)))
        if self.samples == 0:
            raise ValueError("an order needs at least one sample, and the shards hold none")
        # Two threads may compute the same at once: the results are equal.
        self.plan = lru_cache(2)(self._make_plan)
        self._window = lru_cache(_WINDOWS_KEPT)(self._make_window)

    def _make_plan(self, epoch: int) -> EpochPlan:
        """Shard permutation and lane cuts of an epoch."""
        shards = chance.permutation(
            len(self.shard_sizes), self.fingerprint, self.seed, epoch, "shards"
        )
        starts = np.concatenate(([0], np.cumsum(self.shard_sizes[shards])))
        first = epoch * self.samples
        lanes = np.arange(self.lanes, dtype=np.int64)
        lane_first = first + (lanes - first) % self.lanes
        lengths = np.maximum(-(-(first + self.samples - lane_first) // self.lanes), 0)
        lane_starts = np.concatenate(([0], np.cumsum(lengths)))
        return EpochPlan(shards, starts, lane_starts, lane_first)

    def _make_window(self, epoch: int, lane: int, number: int) -> Ints:
        """Sample ids of one window of a lane, in their shuffled order."""
        plan = self.plan(epoch)
        begin = plan.lane_starts[lane] + number * self.window
        end = min(begin + self.window, plan.lane_starts[lane + 1])
        shuffled = begin + chance.permutation(
            int(end - begin), self.fingerprint, self.seed, epoch, lane, number
        )
        slots = np.searchsorted(plan.starts, shuffled, side="right") - 1
        ids: Ints = self._first_of_shard[plan.shards[slots]] + shuffled - plan.starts[slots]
        return ids

    def look_ahead(self, position: int, size: int) -> None:
        """Compute the windows of a later batch: a new epoch needs a new one in every lane. The
        first and the last positions of the lanes are enough, unless a batch has whole windows."""
        end = position + size
        edges = {*range(position, min(position + self.lanes, end))}
        edges.update(range(max(end - self.lanes, position), end))
        self.samples_at(np.array(sorted(edges), dtype=np.int64))

    def samples_at(self, positions: Ints) -> Ints:
        """The sample id at each global position."""
        ids = np.empty(len(positions), dtype=np.int64)
        epochs, lanes = positions // self.samples, positions % self.lanes
        # Sets, because np.unique lets go of the interpreter lock several times.
        for epoch in sorted(set(epochs.tolist())):
            plan = self.plan(epoch)
            rows = np.flatnonzero(epochs == epoch)
            offsets = (positions[rows] - plan.lane_first[lanes[rows]]) // self.lanes
            numbers = offsets // self.window
            keys = lanes[rows] * (self.samples + 1) + numbers
            for key in sorted(set(keys.tolist())):
                lane, number = divmod(key, self.samples + 1)
                mask, window = keys == key, self._window(epoch, lane, number)
                ids[rows[mask]] = window[offsets[mask] - number * self.window]
        return ids

    def arranged(self, position: int, size: int) -> Ints:
        """The positions of a batch, lane by lane; each rank takes a contiguous part of them."""
        positions = np.arange(position, position + size, dtype=np.int64)
        if self.lanes == 1:
            return positions
        return positions[np.argsort(positions % self.lanes, kind="stable")]

    def part(self, position: int, size: int, begin: int, end: int) -> tuple[Ints, Ints]:
        """Sample ids and epochs of one contiguous part of the batch that starts at `position`."""
        positions = self.arranged(position, size)[begin:end]
        return self.samples_at(positions), positions // self.samples


class Arrangement(Protocol):
    """Anything that maps a part of a batch to its samples and their epochs."""

    def part(self, position: int, size: int, begin: int, end: int) -> tuple[Ints, Ints]: ...

    def look_ahead(self, position: int, size: int) -> None: ...


class InOrder:
    """The arrangement of evaluation: sample number p is at position p, in epoch 0."""

    def part(self, position: int, size: int, begin: int, end: int) -> tuple[Ints, Ints]:
        samples = np.arange(position + begin, position + end, dtype=np.int64)
        return samples, np.zeros_like(samples)

    def look_ahead(self, position: int, size: int) -> None:
        """Nothing is computed ahead."""
