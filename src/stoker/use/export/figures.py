"""What a run's own evaluation measured of the exported weights.

Invariant: figures belong to the position of the exported checkpoint. Where the run kept none for
it, there are none: figures of other weights are never shown.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from stoker.errors import StokerError
from stoker.run.directory import Run

MOST_WORST = 5
"""Classes that are named as the worst."""


@dataclass(frozen=True)
class ClassFigure:
    """Right answers among the images of a class."""

    name: str
    images: int
    top1: int


@dataclass(frozen=True)
class EvaluationFigures:
    """Right answers among `images`."""

    images: int
    top1: int
    top5: int
    macro: float | None = None
    """The mean over classes of the share of right answers."""
    worst: tuple[ClassFigure, ...] = ()
    """The classes with the smallest share of right answers."""

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def figures_of(run: Run, position: int) -> EvaluationFigures | None:
    """The figures of the checkpoint at a position; None where the run has none."""
    events = [event for event in run.merged("evaluation") if event["position"] == position]
    if not events:
        return None
    event = events[-1]
    rows = per_class(run, position)
    shares = [row.top1 / row.images for row in rows]
    worst = sorted(rows, key=lambda row: (row.top1 / row.images, row.name))[:MOST_WORST]
    macro = sum(shares) / len(shares) if shares else None
    return EvaluationFigures(event["images"], event["top1"], event["top5"], macro, tuple(worst))


def per_class(run: Run, position: int) -> list[ClassFigure]:
    """The classes with images in the kept evaluation; none where it is missing, damaged or of
    another position."""
    try:
        kept = run.evaluation()
    except StokerError:
        return []
    if kept is None or kept.position != position:
        return []
    rows = zip(kept.report.classes, kept.report.per_class, strict=True)
    return [ClassFigure(name, images, top1) for name, (images, top1, _) in rows if images]
