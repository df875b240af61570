"""Orders to compare the product's with, each an `Arrangement` that a loader takes.

Invariants: every order is a function of its arguments and the position, as the product's is. A
batch of `size` at a position is the same whatever part of it is asked for; parts are cut host by
host. `region` gives the positions of the first epoch that stand for all of it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stoker import chance
from stoker.data.loading.order import Arrangement, Order

Ints = NDArray[np.int64]

EXACT = 2_000_000
"""Sets of at most so many images are permuted whole; of larger ones samples are drawn."""
FILLS = 2
"""After so many times its size, hardly a sample of its first filling is left in a buffer."""

DRAWS = 1024
"""Steps whose random numbers are drawn at once."""


class Positions:
    """What the orders here have in common: they answer for positions, not for lanes."""

    samples: int

    def samples_at(self, positions: Ints) -> Ints:
        raise NotImplementedError

    def part(self, position: int, size: int, begin: int, end: int) -> tuple[Ints, Ints]:
        """Sample ids and epochs of one contiguous part of the batch that starts at `position`."""
        positions = np.arange(position + begin, position + end, dtype=np.int64)
        return self.samples_at(positions), positions // self.samples

    def look_ahead(self, position: int, size: int, begin: int, end: int) -> None:
        """Nothing is computed ahead."""


class Perfect(Positions):
    """Every order of an epoch is as likely as every other. Of a set of more than EXACT images each
    position is drawn by itself: two of a batch are the same image once in thousands of batches."""

    def __init__(self, samples: int, seed: int) -> None:
        self.samples, self.seed = samples, seed
        self._epoch = lru_cache(2)(self._permuted)

    def _permuted(self, epoch: int) -> Ints:
        return chance.permutation(self.samples, "perfect", self.seed, epoch)

    def samples_at(self, positions: Ints) -> Ints:
        if self.samples > EXACT:
            keys = chance.hash_of("perfect", self.seed, positions)
            return (keys % np.uint64(self.samples)).astype(np.int64)
        ids = np.empty(len(positions), dtype=np.int64)
        epochs = positions // self.samples
        for epoch in sorted(set(epochs.tolist())):
            rows = epochs == epoch
            ids[rows] = self._epoch(epoch)[positions[rows] - epoch * self.samples]
        return ids


class ShardsOnly(Positions):
    """The product's permutation of the shards and its lanes, and the samples of a lane in the order
    of the set: what `Order` gives with a window of one sample."""

    def __init__(self, order: Order) -> None:
        self.samples, self._order = order.samples, order
        self._first = np.concatenate(([0], np.cumsum(order.shard_sizes)))

    def samples_at(self, positions: Ints) -> Ints:
        ids = np.empty(len(positions), dtype=np.int64)
        epochs, lanes = positions // self.samples, positions % self._order.lanes
        for epoch in sorted(set(epochs.tolist())):
            rows, plan = np.flatnonzero(epochs == epoch), self._order.plan(epoch)
            lane = lanes[rows]
            offsets = (positions[rows] - plan.lane_first[lane]) // self._order.lanes
            sequence = plan.lane_starts[lane] + offsets
            slots = np.searchsorted(plan.starts, sequence, side="right") - 1
            ids[rows] = self._first[plan.shards[slots]] + sequence - plan.starts[slots]
        return ids

    def part(self, position: int, size: int, begin: int, end: int) -> tuple[Ints, Ints]:
        positions = self._order.arranged(position, size)[begin:end]
        return self.samples_at(positions), positions // self.samples


class Buffered(Positions):
    """A model of a shuffle buffer as WebDataset has it, not its code: shards are permuted and dealt
    out to the hosts in turn, each host draws at random from a buffer that its next sample refills,
    and gives the same share of every batch: as many samples as the host with the fewest may have,
    so some are left out of an epoch. `reach`: of each host only so many samples are computed once
    its buffer has settled, 0: all."""

    def __init__(self, sizes: Ints, size: int, seed: int, hosts: int = 1, reach: int = 0) -> None:
        self._sizes, self._size, self._seed, self._hosts = sizes, size, seed, hosts
        self._first = np.concatenate(([0], np.cumsum(sizes)))
        least = int(np.sort(sizes)[: len(sizes) // hosts].sum())
        settled = FILLS * size
        self._wanted = min(settled + reach, least) if reach else least
        self._epoch = lru_cache(2)(self._drawn)
        self.samples = hosts * self._wanted
        settles = self._wanted == settled + reach if reach else settled < least // 2
        self.region = (hosts * settled if settles else 0), self.samples
        """Positions of the first epoch after the buffers have settled, if they ever do."""

    def _stream(self, shards: Ints) -> Ints:
        """The samples of some shards, as many as are wanted."""
        ends = np.cumsum(self._sizes[shards])
        needed = int(np.searchsorted(ends, self._wanted + self._size)) + 1
        pieces = [self._first[s] + np.arange(self._sizes[s]) for s in shards[:needed].tolist()]
        ids: Ints = np.concatenate(pieces)[: self._wanted + self._size]
        return ids

    def _drawn(self, epoch: int) -> Ints:
        """The samples of each host in the order it gives them: a row a host."""
        shards = chance.permutation(len(self._sizes), "buffer", self._seed, epoch)
        streams = [self._stream(shards[host :: self._hosts]) for host in range(self._hosts)]
        length = min(map(len, streams))
        stream = np.stack([ids[:length] for ids in streams], axis=1)
        size = min(self._size, length)
        rng = np.random.default_rng([self._seed, epoch, size])
        buffer, rows = stream[:size].copy(), np.arange(self._hosts)
        given = np.empty_like(stream)
        for number in range(length - size):
            if number % DRAWS == 0:
                draws = rng.integers(0, size, (DRAWS, self._hosts))
            places = draws[number % DRAWS]
            given[number] = buffer[places, rows]
            buffer[places, rows] = stream[size + number]
        given[length - size :] = rng.permuted(buffer, axis=0)
        return given[: self._wanted].T

    def samples_at(self, positions: Ints) -> Ints:
        """Position p is of host p mod hosts."""
        ids = np.empty(len(positions), dtype=np.int64)
        epochs = positions // self.samples
        for epoch in sorted(set(epochs.tolist())):
            rows = epochs == epoch
            turns, hosts = np.divmod(positions[rows] - epoch * self.samples, self._hosts)
            ids[rows] = self._epoch(epoch)[hosts, turns]
        return ids

    def part(self, position: int, size: int, begin: int, end: int) -> tuple[Ints, Ints]:
        """As for all orders; `position` and `size` are multiples of the number of hosts."""
        hosts, turns = np.divmod(np.arange(begin, end, dtype=np.int64), size // self._hosts)
        positions = position + turns * self._hosts + hosts
        return self.samples_at(positions), positions // self.samples


class Stored:
    """An order over a set whose samples are stored in another sequence: `storage` has the sample at
    each place of it."""

    def __init__(self, order: Arrangement, storage: Ints) -> None:
        self._order, self._storage = order, storage

    def part(self, position: int, size: int, begin: int, end: int) -> tuple[Ints, Ints]:
        places, epochs = self._order.part(position, size, begin, end)
        return self._storage[places], epochs

    def look_ahead(self, position: int, size: int, begin: int, end: int) -> None:
        self._order.look_ahead(position, size, begin, end)
