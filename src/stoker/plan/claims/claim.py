"""A claim: the figures that are stated about one run, as plain values.

Invariants: a figure is an interval. '45' means 44.5 to 45.5, '11.00' means 10.995 to 11.005: what
rounds to the given digits. Counts (images, epochs, GPUs) are exact. `[3, 4]` is a range. Every
number is between SMALLEST and LARGEST.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Annotated, get_type_hints

SMALLEST, LARGEST = 1e-12, 1e15
OUTCOMES = ("ok", "out-of-memory", "crashed")


@dataclass(frozen=True)
class Figure:
    """A stated number: what was written, and the interval that it stands for."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, number: float | Decimal, exact: bool = False) -> Figure:
        """The figure of a number, whose last written digit may be rounded unless it is exact."""
        value = float(number)
        half = 0.0
        if not exact:
            exponent = number.as_tuple().exponent if isinstance(number, Decimal) else 0
            half = 0.5 * 10.0**exponent if isinstance(exponent, int) else 0.0
        return cls(value, max(value - half, 0.0), value + half)

    @classmethod
    def between(cls, low: Figure, high: Figure) -> Figure:
        return cls((low.value + high.value) / 2, low.low, high.high)

    def __mul__(self, other: Figure) -> Figure:
        return Figure(self.value * other.value, self.low * other.low, self.high * other.high)

    def __truediv__(self, other: Figure) -> Figure:
        """The quotient; where the divisor may be 0, its upper end is infinite."""
        high = self.high / other.low if other.low else float("inf")
        return Figure(self.value / other.value, self.low / other.high, high)


Count = Annotated[Figure | None, "count"]
Rounded = Annotated[Figure | None, "figure"]
Word = Annotated[str, "text"]


@dataclass(frozen=True, kw_only=True)
class ClaimedPhase:
    """One phase of a run as it is stated."""

    epochs: Count = None
    """Epochs of this phase."""
    minutes: Rounded = None
    """Minutes that it takes."""
    image_size: Count = None
    """Side of the square model input in pixels."""
    batch_size: Count = None
    """Images of a step on all GPUs."""
    lr: Rounded = None
    """Peak learning rate."""


@dataclass(frozen=True, kw_only=True)
class RunClaim:
    """The figures that are stated about one run on one kind of machine; None: not stated."""

    name: Word = ""
    """What messages call this claim."""
    source: Word = ""
    """Where it is stated."""
    model: Word = ""
    """The model."""
    gpu: Word = ""
    """The GPU."""
    precision: Word = ""
    """The precision, such as fp32 or amp."""
    outcome: Word = ""
    """Ok, out-of-memory or crashed."""
    zone: Word = ""
    """Zone of the machine."""
    volume_zone: Word = ""
    """Zone of the disk that holds the images."""

    images: Count = None
    """Training images."""
    epochs: Count = None
    """Passes over them."""
    images_per_s: Rounded = None
    """Training throughput of all GPUs."""
    seconds_per_epoch: Rounded = None
    """Duration of an epoch."""
    seconds_per_step: Rounded = None
    """Duration of a step."""
    hours: Rounded = None
    """Duration of the run."""
    minutes: Rounded = None
    """The same in minutes: give one of the two."""

    machines: Count = None
    """Machines of the run [1]."""
    price_per_hour: Rounded = None
    """Dollars for an hour of one machine."""
    on_demand_per_hour: Rounded = None
    """Dollars for an hour of one without interruptions."""
    saving_percent: Rounded = None
    """How much cheaper the price is than on demand."""
    dollars: Rounded = None
    """Cost of the run."""
    bid: Rounded = None
    """Highest price that is accepted for an hour of one machine."""

    gpus: Count = None
    """GPUs of the run"""
    gpu_memory_gb: Rounded = None
    """Memory of one GPU."""
    total_gpu_memory_gb: Rounded = None
    """Memory of all GPUs."""
    one_gpu_images_per_s: Rounded = None
    """Training throughput of one such GPU."""

    image_size: Count = None
    """Side of the square model input in pixels."""
    batch_size: Count = None
    """Images of a step on all GPUs."""
    batch_per_gpu: Count = None
    """Images of a step on one GPU."""
    lr: Rounded = None
    """Peak learning rate."""
    lr_base: Rounded = None
    """Learning rate for a batch of lr_base_size images [0.1]."""
    lr_base_size: Count = None
    """Batch that lr_base is meant for [256]."""

    disk_gb: Rounded = None
    """Size of the disk for the images."""
    data_gb: Rounded = None
    """Size of the images on that disk."""
    phases: tuple[ClaimedPhase, ...] = ()

    @property
    def seconds(self) -> Figure | None:
        """Duration of the run."""
        if self.hours is not None:
            return self.hours * Figure.of(3600, exact=True)
        return None if self.minutes is None else self.minutes * Figure.of(60, exact=True)


@cache
def kinds_of(table: type) -> Mapping[str, str]:
    """The keys of a table with what they hold: count, figure or text."""
    hints = get_type_hints(table, include_extras=True)
    return {
        name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")
    }
