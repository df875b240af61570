"""From what each part costs by itself to what training will reach: pure functions of numbers.

A step needs three things at once: the network's turn, a batch from the loader, and cores for both.
They overlap, so the slowest of them sets the pace:

    step_s = max(compute.wall_s, loader.wall_s, (compute.cpu_s + loader.cpu_s) / cores)

Invariants: no part alone is slower than the step; a cheaper part never makes it longer; more cores
never make it longer. Evaluation and checkpoints are not part of a step: they come on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

COMPUTE, LOADER, CORES = "compute", "data", "host"


@dataclass(frozen=True)
class Cost:
    """What one batch costs one part of training, by itself."""

    wall_s: float
    cpu_s: float

    def scaled(self, factor: float) -> Cost:
        return Cost(self.wall_s * factor, self.cpu_s * factor)


@dataclass(frozen=True)
class Ceiling:
    """A resource, and how many images a second it could serve were the others free."""

    limit: str
    words: str
    images_per_s: float


@dataclass(frozen=True)
class Forecast:
    """The pace of training, as far as the parts tell it."""

    batch_size: int
    ceilings: tuple[Ceiling, ...]
    """The lowest first."""

    @property
    def images_per_s(self) -> float:
        return self.ceilings[0].images_per_s

    @property
    def step_s(self) -> float:
        return self.batch_size / max(self.images_per_s, 1e-9)

    @property
    def binds(self) -> Ceiling:
        return self.ceilings[0]

    @property
    def runner_up(self) -> Ceiling:
        return self.ceilings[1]


def forecast(batch_size: int, compute: Cost, loader: Cost, cores: int) -> Forecast:
    """What training reaches with these parts on so many cores."""
    together_s = compute.cpu_s + loader.cpu_s
    loading = loader.cpu_s / max(together_s, 1e-9)
    words = f"the cores: the network takes {1 - loading:.0%} of their time, loading {loading:.0%}"
    rows = (
        (COMPUTE, "compute: the network itself", compute.wall_s),
        (LOADER, "loading: reading and decoding", loader.wall_s),
        (CORES, words, together_s / max(cores, 1)),
    )
    found = [Ceiling(limit, words, batch_size / max(step_s, 1e-9)) for limit, words, step_s in rows]
    # Where two bind alike, the one with a name of its own says more than the cores.
    return Forecast(batch_size, tuple(sorted(found, key=lambda row: row.images_per_s)))


def fixed_s(whole_s: float, half_s: float) -> float:
    """What a step costs whatever its batch, from one batch and one of half the size."""
    return max(2 * half_s - whole_s, 0.0)


def for_batch(measured: Cost, measured_size: int, fixed: Cost, size: int) -> Cost:
    """The cost of a batch of another size: the fixed part once, the rest by the image."""
    factor = size / measured_size
    wall_s, cpu_s = min(fixed.wall_s, measured.wall_s), min(fixed.cpu_s, measured.cpu_s)
    return Cost(
        wall_s + (measured.wall_s - wall_s) * factor, cpu_s + (measured.cpu_s - cpu_s) * factor
    )


def spread(values: Sequence[float]) -> float:
    """The middle half of some values, as a share of their median; 0 where there are too few."""
    if len(values) < 4:
        return 0.0
    low, _, high = quantiles(values, n=4)
    return (high - low) / max(median(values), 1e-12)
