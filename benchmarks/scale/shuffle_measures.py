"""Measures of how well an order mixes a set: pure functions on arrays.

Invariants: a figure is the mean over the batches given; beside it stands what a perfect shuffle is
expected to have, from a formula where there is one. Places and positions are shares of the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.data.loading.order import Order

Ints = NDArray[np.int64]

QUANTILES = (0.1, 0.5, 0.9)
PERFECT_MEAN = 1 / 3
"""How far apart two independent places are on average, as a share of the epoch."""
PERFECT_QUANTILES = tuple(1 - (1 - share) ** 0.5 for share in QUANTILES)


@dataclass(frozen=True)
class Movement:
    """How far samples are from where they were before, as shares of the epoch."""

    mean: float
    quantiles: tuple[float, ...]
    correlation: float
    """Of the places before and after; of a perfect shuffle about 0."""


def movement(before: Ints, after: Ints, samples: int) -> Movement:
    distances = np.abs(after - before) / samples
    quantiles = tuple(np.quantile(distances, QUANTILES).tolist())
    correlation = float(np.corrcoef(before, after)[0, 1])
    return Movement(float(distances.mean()), quantiles, correlation)


def place_in_epoch(order: Order, epoch: int, ids: Ints) -> Ints:
    """Where samples come in an epoch, counted from its begin: asks the order for the window that
    each sample is in, and looks there."""
    plan = order.plan(epoch)
    first_of_shard = np.concatenate(([0], np.cumsum(order.shard_sizes)))
    slot_of_shard = np.argsort(plan.shards)
    shards = np.searchsorted(first_of_shard, ids, side="right") - 1
    sequence = plan.starts[slot_of_shard[shards]] + ids - first_of_shard[shards]
    lanes = np.searchsorted(plan.lane_starts, sequence, side="right") - 1
    windows = (sequence - plan.lane_starts[lanes]) // order.window
    places = np.empty(len(ids), dtype=np.int64)
    for row, (sample, lane, window) in enumerate(zip(ids, lanes, windows, strict=True)):
        length = plan.lane_starts[lane + 1] - plan.lane_starts[lane]
        offsets = np.arange(window * order.window, min((window + 1) * order.window, length))
        positions = plan.lane_first[lane] + offsets * order.lanes
        found = np.flatnonzero(order.samples_at(positions) == sample)
        places[row] = positions[int(found[0])]
    return places - epoch * order.samples


def same_shard_pairs(ids: Ints, shard_sizes: Ints) -> int:
    """The pairs of samples of a batch that are in the same shard."""
    ends = np.cumsum(shard_sizes)
    _, counts = np.unique(np.searchsorted(ends, ids, side="right"), return_counts=True)
    return int((counts * (counts - 1) // 2).sum())


def expected_pairs(batch: int, shard_sizes: Ints) -> float:
    """The same for a batch that is drawn from the whole set without replacement."""
    sizes, samples = shard_sizes.astype(np.float64), float(shard_sizes.sum())
    in_set = float((sizes * (sizes - 1)).sum()) / 2
    return in_set * batch / samples * (batch - 1) / (samples - 1)


@dataclass(frozen=True)
class ClassMix:
    """The classes of a batch beside those of the set."""

    distinct: float
    """How many classes it has."""
    distance: float
    """Total variation distance: the share of the batch that would have to be of other classes."""
    excess: float
    """Chi-square by its degrees of freedom: about 1 for a perfect shuffle; how many times the
    variance of a class's count is as large."""


def class_mix(labels: Ints, class_shares: NDArray[np.float64]) -> ClassMix:
    """Of one batch. Classes that the set does not have must not occur."""
    counts = np.bincount(labels, minlength=len(class_shares))
    expected = len(labels) * class_shares
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return ClassMix(
        distinct=float((counts > 0).sum()),
        distance=float(np.abs(counts - expected).sum()) / (2 * len(labels)),
        excess=chi_square / (len(class_shares) - 1),
    )


def mean_mix(mixes: list[ClassMix]) -> ClassMix:
    columns = np.mean([(mix.distinct, mix.distance, mix.excess) for mix in mixes], axis=0)
    return ClassMix(*map(float, columns))
