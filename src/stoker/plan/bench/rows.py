"""One row of a benchmark: what a cell reached, or why it did not.

Invariants: a row that is not `ok` has a reason and no figures. Images a second are the median of
the repeats; everything that follows from it (seconds and dollars an epoch, utilisation) is computed
here and nowhere else, so no two figures of a row can disagree. Warm-up, compiling and the first
pass from the disk stand beside the repeats and never among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from stoker.intervals import Median, median_of
from stoker.plan.bench.cells import AMP, MOST_NUMBER, BenchCell
from stoker.plan.bench.stored_fields import Fields
from stoker.plan.bench.utilisation import utilisation

OK, NO_MEMORY, CRASHED, TIMED_OUT, REFUSED = (
    "ok",
    "out of memory",
    "crashed",
    "timed out",
    "refused",
)
OUTCOMES = (OK, NO_MEMORY, CRASHED, TIMED_OUT, REFUSED)
ENOUGH = 5
"""Repeats from which on two rows are compared."""
MOST_REPEATS = 1000


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured in a cell that ran to its end."""

    rates: tuple[float, ...]
    """Images a second of each repeat, in order."""
    cold_images_per_s: float
    """Of the first pass, before the repeats."""
    cached_before: float | None
    """The share of the set that was in the page cache before it; None where unknown."""
    setup_s: float
    """From the start of the process to the first step: loading Python, building the model."""
    first_step_s: float
    """The first step alone: it compiles, where that was asked for, and chooses kernels."""
    warm_up_steps: int
    warm_up_s: float
    """Of all excluded steps, the first one among them."""
    data_share: float
    """The share of a step for which the model waited for images."""
    limit: str
    """What limits training, as `stoker explain` names it; empty where nothing was measured."""
    verdict: str
    """The sentence about it."""
    memory_bytes: int
    """The highest of all ranks: allocated on a GPU, else resident."""
    flops_per_image: float | None
    peak_flops: float | None
    """Of one device in this precision; None where it is not known."""
    device: Mapping[str, Any]
    state: Mapping[str, Any]
    """Clocks and temperatures at the end of the repeats."""
    evaluation_images_per_s: float | None = None
    """Of an evaluation; None for a set without images for it, and in older files."""

    @cached_property
    def speed(self) -> Median:
        """Images a second."""
        return median_of(self.rates)


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One cell with its outcome."""

    cell: BenchCell
    outcome: str
    reason: str
    """Why there are no figures; empty for `ok`."""
    seconds: float
    """That the whole cell took."""
    measured_at: str
    figures: Figures | None

    @property
    def speed(self) -> Median | None:
        return self.figures.speed if self.figures else None

    def epoch_s(self, images: int) -> float | None:
        """Seconds of an epoch of so many images, without evaluation and saving."""
        return images / self.speed.median if self.speed else None

    def epoch_dollars(self, images: int, dollars_per_hour: float | None) -> float | None:
        """What such an epoch costs; None without a price."""
        seconds = self.epoch_s(images)
        if seconds is None or dollars_per_hour is None:
            return None
        return seconds / 3600 * dollars_per_hour

    @property
    def mfu(self) -> float | None:
        """The share of the devices' peak (MFU); None where it is not known."""
        figures = self.figures
        if figures is None:
            return None
        return utilisation(
            figures.speed.median, figures.flops_per_image, figures.peak_flops, self.cell.ranks
        )

    def as_data(self, images: int, dollars_per_hour: float | None) -> dict[str, Any]:
        """Plain data for a result file, with what follows from the figures."""
        data: dict[str, Any] = {
            "cell": self.cell.as_data(),
            "outcome": self.outcome,
            "reason": self.reason,
            "seconds": self.seconds,
            "measured_at": self.measured_at,
            "figures": None,
        }
        if self.figures and self.speed:
            data["figures"] = {
                **asdict(self.figures),
                "images_per_s": self.speed.median,
                "low": self.speed.low,
                "high": self.speed.high,
                "seconds_per_epoch": self.epoch_s(images),
                "dollars_per_epoch": self.epoch_dollars(images, dollars_per_hour),
                "mfu": self.mfu,
            }
        return data


def row_of(fields: Fields) -> BenchRow:
    """The row of a stored one. Raises BadRequest where it is none."""
    outcome = fields.choice("outcome", OUTCOMES)
    figures = fields.table_or_none("figures")
    if (figures is not None) != (outcome == OK):
        raise fields.wrong("figures", "given for the outcome ok, and for no other")
    return BenchRow(
        cell=cell_of_fields(fields.table("cell")),
        outcome=outcome,
        reason=fields.text("reason"),
        seconds=fields.number("seconds"),
        measured_at=fields.text("measured_at", 40),
        figures=figures_of(figures) if figures else None,
    )


def cell_of_fields(fields: Fields) -> BenchCell:
    return BenchCell(
        fields.text("model", 300),
        fields.whole("image_size", 1, MOST_NUMBER),
        fields.whole("batch_size", 1, MOST_NUMBER),
        fields.choice("precision", list(AMP)),
        fields.whole("ranks", 1, MOST_NUMBER),
    )


def figures_of(fields: Fields) -> Figures:
    rates = fields.numbers("rates", MOST_REPEATS)
    if not rates or min(rates) <= 0:
        raise fields.wrong("rates", "a list of at least one number above 0")
    return Figures(
        rates=rates,
        cold_images_per_s=fields.number("cold_images_per_s"),
        cached_before=fields.number_or_none("cached_before", 0, 1),
        setup_s=fields.number("setup_s"),
        first_step_s=fields.number("first_step_s"),
        warm_up_steps=fields.whole("warm_up_steps"),
        warm_up_s=fields.number("warm_up_s"),
        data_share=fields.number("data_share", 0, 1),
        limit=fields.text("limit", 60),
        verdict=fields.text("verdict"),
        memory_bytes=fields.whole("memory_bytes"),
        flops_per_image=fields.number_or_none("flops_per_image"),
        peak_flops=fields.number_or_none("peak_flops", most=1e21),
        device=device_of(fields.table("device")),
        state=fields.table("state").plain(),
        evaluation_images_per_s=fields.number_or_none("evaluation_images_per_s", 1e-9),
    )


def device_of(fields: Fields) -> dict[str, Any]:
    return {
        "kind": fields.text("kind", 20),
        "name": fields.text("name", 200),
        "memory_bytes": fields.whole("memory_bytes"),
    }


def failed_row(
    cell: BenchCell, outcome: str, reason: str, seconds: float, measured_at: str
) -> BenchRow:
    return BenchRow(
        cell=cell,
        outcome=outcome,
        reason=reason,
        seconds=seconds,
        measured_at=measured_at,
        figures=None,
    )


def differs(one: BenchRow, other: BenchRow) -> bool | None:
    """Whether two rows of the same job differ: their intervals part. None where one of them has
    no figures, or too few repeats to tell."""
    if one.speed is None or other.speed is None:
        return None
    if min(one.speed.count, other.speed.count) < ENOUGH:
        return None
    return not one.speed.overlaps(other.speed)
