"""Curves of a run: a point for each row, over steps, samples or time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stoker.measure.spans import APART
from stoker.run.kinds import Event
from stoker.run.rows import time_of

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TrainingPoint:
    """The steps of about ten seconds, as rank 0 saw them."""

    attempt: int
    count: int
    """How many steps these are."""
    step: int
    """The number of steps that were made up to here."""
    position: int
    """Samples up to here."""
    epoch: float
    time: float
    """When this was written, in seconds since 1970."""
    seconds: float
    """Seconds of all attempts up to here, without the pauses between them."""
    lr: float | None
    norm: float | None
    """The largest gradient norm."""
    images_per_s: float | None
    """Of all ranks."""
    step_s: float
    """The mean seconds of a step, without what comes between steps."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds of each part, added up over the steps."""


def point_of(row: Event, attempt: int, seconds: float) -> TrainingPoint:
    """The point of a row of steps, after which so many seconds have been used."""
    parts = row["parts"]
    training_s = sum(s for part, s in parts.items() if part not in APART)
    return TrainingPoint(
        attempt=attempt,
        count=row["count"],
        step=row["last"] + 1,
        position=row["until"],
        epoch=row["epoch"],
        time=time_of(row),
        seconds=seconds,
        lr=row.get("lr"),
        norm=row["norm"],
        images_per_s=row["batch"] / training_s if training_s > 0 else None,
        step_s=training_s / row["count"],
        parts=parts,
    )


class TrainingSums:
    """Loss and hits of all ranks, row by row."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, ...]] = []

    def take(self, row: Event) -> None:
        """Add a row of steps of any rank."""
        middle = (row["position"] + row["until"]) / 2
        self._rows.append((middle, row["images"], *row["sums"]))

    def curve(self, most: int = 300) -> LossCurve:
        """At most so many points, equally spaced over the samples, each the mean over all ranks."""
        table = np.array(self._rows or np.empty((0, 5)), float)
        table = table[np.argsort(table[:, 0], kind="stable")]
        if not len(table):
            return LossCurve(*(np.empty(0) for _ in range(4)))
        first, last = table[0, 0], table[-1, 0]
        places = np.zeros(len(table), np.int64)
        if last > first:
            places = ((table[:, 0] - first) / (last - first) * most).astype(np.int64)
            places = np.minimum(places, most - 1)
        counts = np.bincount(places, minlength=1)
        filled = counts > 0
        sums = [np.bincount(places, weights=column)[filled] for column in table.T]
        images = np.maximum(sums[1], 1)
        position = sums[0] / counts[filled]
        return LossCurve(position, *(column / images for column in sums[2:]))


@dataclass(frozen=True)
class LossCurve:
    """The training loss and accuracy over the samples. A loss may be NaN or infinite."""

    position: Floats
    loss: Floats
    top1: Floats
    top5: Floats


def recent_points(points: Sequence[TrainingPoint], seconds: float) -> Sequence[TrainingPoint]:
    """The latest points of the last attempt that cover so many seconds; fewer where it is young."""
    if not points:
        return points
    latest = points[-1]
    first = len(points) - 1
    while (
        first > 0
        and points[first - 1].attempt == latest.attempt
        and latest.seconds - points[first - 1].seconds < seconds
    ):
        first -= 1
    return points[first:]
