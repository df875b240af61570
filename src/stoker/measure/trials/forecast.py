"""The expected throughput of training, from the cost of each part alone: pure functions.

A step needs three things at once: the model's forward and backward pass, a batch from the loader,
and cores for both. They overlap, so the slowest of them sets the duration of a step:

    step_s = max(compute.wall_s, loader.wall_s, (compute.cpu_s + loader.cpu_s) / cores)

Invariants: no part alone is slower than the step; neither a cheaper part nor more cores make a step
longer. Evaluation and checkpoints are not part of a step: their time is added to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

COMPUTE, LOADER, CORES = "compute", "data", "host"


@dataclass(frozen=True)
class Cost:
    """The time that one part of training, running alone, takes for a batch."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Ceiling:
    """A resource, and the images a second that it allows if the others cost nothing."""

    limit: str
    words: str
    images_per_s: float


@dataclass(frozen=True)
class Forecast:
    """The throughput of training that follows from its parts."""

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
    cpu_s = compute.cpu_s + loader.cpu_s
    loading = loader.cpu_s / max(cpu_s, 1e-9)
    shares = f"the model takes {1 - loading:.0%} of their time, loading {loading:.0%}"
    rows = (
        (COMPUTE, "compute: the model's forward and backward pass", compute.wall_s),
        (LOADER, "loading: reading and decoding", loader.wall_s),
        (CORES, f"the cores: {shares}", cpu_s / max(cores, 1)),
    )
    ceilings = [
        Ceiling(limit, text, batch_size / max(step_s, 1e-9)) for limit, text, step_s in rows
    ]
    # The sort is stable: of equal ceilings, compute and loading say more than the cores.
    return Forecast(batch_size, tuple(sorted(ceilings, key=lambda ceiling: ceiling.images_per_s)))


def fixed_s(whole_s: float, half_s: float) -> float:
    """The seconds of a step that do not depend on its batch, from a batch and half a batch: at most
    all of them, also where chance made the half the slower one."""
    return min(max(2 * half_s - whole_s, 0.0), whole_s)


def for_batch(measured: Cost, measured_size: int, fixed: Cost, size: int) -> Cost:
    """The cost of another batch size: the fixed part once, the rest in proportion to images."""
    factor = size / measured_size
    wall_s, cpu_s = min(fixed.wall_s, measured.wall_s), min(fixed.cpu_s, measured.cpu_s)
    return Cost(
        wall_s + (measured.wall_s - wall_s) * factor, cpu_s + (measured.cpu_s - cpu_s) * factor
    )


def spread(values: Sequence[float]) -> float:
    """The interquartile range as a share of the median; 0 for fewer than 4 values."""
    if len(values) < 4:
        return 0.0
    low, _, high = quantiles(values, n=4)
    return (high - low) / max(median(values), 1e-12)
