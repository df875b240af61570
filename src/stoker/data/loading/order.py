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

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stoker import chance

Ints = NDArray[np.int64]

WINDOW = 4096
MAX_LANES = 64
"""Lanes of a run on fewer machines than that."""
_WINDOWS_KEPT = 4


def lanes_for(samples: int, batch_sizes: list[int], window: int = WINDOW, machines: int = 1) -> int:
    """The largest power of two that leaves a lane at least a window long and divides half of every
    batch, so that parts of a batch end where lanes end. On more than MAX_LANES machines as many
    lanes as machines, where that leaves such lanes: then each machine has lanes of its own."""
    if machines > MAX_LANES and fits(machines, samples, batch_sizes, window):
        return machines
    lanes = 1
    while 2 * lanes <= MAX_LANES and fits(2 * lanes, samples, batch_sizes, window):
        lanes *= 2
    return lanes


def fits(lanes: int, samples: int, batch_sizes: list[int], window: int) -> bool:
    """Whether lanes are at least a window long, and half of every batch has the same number of
    samples of each."""
    return samples // lanes >= window and all(size % (2 * lanes) == 0 for size in batch_sizes)


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
        kept = _WINDOWS_KEPT * max(self.lanes, MAX_LANES)
        self._window = lru_cache(kept)(self._make_window)

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

    def look_ahead(self, position: int, size: int, begin: int, end: int) -> None:
        """Compute the windows of one contiguous part of a later batch: a new epoch needs a new one
        in every lane. The first and the last position of each lane are enough, unless a batch has
        whole windows."""
        positions = self.arranged(position, size)[begin:end]
        if not len(positions):
            return
        changes = np.flatnonzero(np.diff(positions % self.lanes)) + 1
        edges = {0, *changes.tolist(), *(changes - 1).tolist(), len(positions) - 1}
        self.samples_at(positions[sorted(edges)])

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

    def lanes_of(self, position: int, size: int, begin: int, end: int) -> set[int]:
        """The lanes that one contiguous part of a batch takes samples from."""
        return set((self.arranged(position, size)[begin:end] % self.lanes).tolist())

    def upcoming(self, position: int, lanes: Iterable[int]) -> Iterator[int]:
        """The shards that some lanes need from a position on, the soonest first, to the end of the
        next epoch. A window needs all of its shards when its first sample is due; a shard comes
        once for each window that it is part of."""
        needs = [self._lane_needs(position, lane) for lane in lanes]
        return (shard for _, shard in heapq.merge(*needs, key=lambda need: need[0]))

    def _lane_needs(self, position: int, lane: int) -> Iterator[tuple[int, int]]:
        """The shards of a lane, each with the position from which on it is needed."""
        now = position // self.samples
        for epoch in (now, now + 1):
            plan = self.plan(epoch)
            first, begin = int(plan.lane_first[lane]), int(plan.lane_starts[lane])
            length = int(plan.lane_starts[lane + 1]) - begin
            passed = max(-(-(position - first) // self.lanes), 0)
            for offset in range(passed // self.window * self.window, length, self.window):
                window = begin + offset, begin + min(offset + self.window, length) - 1
                slots = np.searchsorted(plan.starts, window, side="right") - 1
                due = max(first + offset * self.lanes, position)
                for shard in plan.shards[slots[0] : slots[1] + 1].tolist():
                    if self.shard_sizes[shard]:
                        yield due, shard


class Arrangement(Protocol):
    """Anything that maps a part of a batch to its samples and their epochs. One that knows which
    shards come next has `lanes_of` and `upcoming`, as an Order does."""

    def part(self, position: int, size: int, begin: int, end: int) -> tuple[Ints, Ints]: ...

    def look_ahead(self, position: int, size: int, begin: int, end: int) -> None: ...


class InOrder:
    """The arrangement of evaluation: sample number p is at position p, in epoch 0."""

    def part(self, position: int, size: int, begin: int, end: int) -> tuple[Ints, Ints]:
        samples = np.arange(position + begin, position + end, dtype=np.int64)
        return samples, np.zeros_like(samples)

    def look_ahead(self, position: int, size: int, begin: int, end: int) -> None:
        """Nothing is computed ahead."""
