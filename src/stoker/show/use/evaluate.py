"""An evaluation as a person reads it: figures, the weakest classes, what is confused with what.

Invariant: pure functions of the report; a name takes at most NAME_WIDTH columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stoker.run.evaluation import EvaluationReport, WorstSample, report_data
from stoker.text import harmless_cell, one_line, plural, printable

MOST_CLASSES = 20
"""Classes in the table of a terminal; --all-classes shows the others too."""
MOST_PAIRS = 10
NAME_WIDTH = 32
FEW_CLASSES = 5
"""With so many classes or fewer, every answer is among the top 5."""


@dataclass(frozen=True)
class EvaluationFacts:
    """What was evaluated, and how."""

    model: str
    """Where its weights come from."""
    step: int | None
    data: str
    is_training_set: bool
    """Whether the model was trained on this set."""
    seconds: float
    ranks: int
    tta: str
    left_out: dict[str, int]
    """Images of classes that the model does not know."""


def evaluation_lines(
    report: EvaluationReport, facts: EvaluationFacts, *, all_classes: bool = False
) -> list[str]:
    """Everything about an evaluation but its worst samples."""
    return [
        *figure_lines(report, facts),
        *left_out_lines(facts.left_out),
        "",
        *class_lines(report, all_classes=all_classes),
        *confusion_lines(report),
    ]


def figure_lines(report: EvaluationReport, facts: EvaluationFacts) -> list[str]:
    """What was evaluated, and the figures over all images."""
    mirrored = ", mean logits of image and mirror image" if facts.tta else ""
    ranks = f", {plural(facts.ranks, 'rank')}" if facts.ranks > 1 else ""
    rate = report.images / max(facts.seconds, 1e-9)
    top5 = f", top-5 {share(report.top5, report.images)}" if shows_top5(report) else ""
    loss = "not a number" if report.loss is None else f"{report.loss:.4f}"
    ece = "unknown" if report.ece is None else f"{report.ece:.4f}"
    # In a set for evaluation alone the name of the split says nothing.
    is_all = report.split == "train" and not facts.is_training_set
    split = "" if is_all else f" of {report.split}"
    lines = [
        facts.model,
        f"on {plural(report.images, 'image')}{split} in {facts.data}{mirrored}: "
        f"{facts.seconds:.1f} s, {rate:,.0f} images/s{ranks}",
        f"top-1 {share(report.top1, report.images)}{top5}, macro accuracy {report.macro:.2%}, "
        f"loss {loss}, calibration error {ece}",
    ]
    if report.split == "train" and facts.is_training_set:
        lines.append("note: the model was trained on these images")
    if report.unpredicted:
        images = plural(report.unpredicted, "image")
        lines.append(f"note: {images} without a prediction: the model answers NaN")
    return lines


def left_out_lines(left_out: dict[str, int]) -> list[str]:
    """A note about images of classes that the model does not know."""
    if not left_out:
        return []
    names = sorted(left_out, key=lambda name: -left_out[name])
    listed = ", ".join(f"{short(name)} ({left_out[name]:,})" for name in names[:5])
    more = ", ..." if len(names) > 5 else ""
    return [
        f"note: {plural(sum(left_out.values()), 'image')} of "
        f"{plural(len(names), 'class')} that the model does not know left out: {listed}{more}"
    ]


def share(part: int, whole: int) -> str:
    return f"{part / max(whole, 1):.2%}"


def shows_top5(report: EvaluationReport) -> bool:
    return len(report.classes) > FEW_CLASSES


def short(name: str, width: int = NAME_WIDTH) -> str:
    """A name that takes at most `width` columns, in one printable line."""
    text = printable(name)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def weakest_first(report: EvaluationReport) -> list[int]:
    """The classes with images, the one with the lowest share of right answers first."""
    counts = report.per_class
    present = [number for number, row in enumerate(counts) if row[0]]
    return sorted(present, key=lambda n: (counts[n][1] / counts[n][0], -counts[n][0], n))


def class_lines(report: EvaluationReport, *, all_classes: bool) -> list[str]:
    """A table of classes, the weakest first, each with the class that it is most often taken
    for."""
    order = weakest_first(report)
    listed = order if all_classes else order[:MOST_CLASSES]
    taken_for: dict[int, tuple[int, int]] = {}
    for true, predicted, count in report.confusions:
        taken_for.setdefault(true, (predicted, count))
    names = [short(report.classes[number]) for number in listed]
    width = max([len("class"), *map(len, names)])
    with_top5 = shows_top5(report)
    lines = [
        f"{'class':<{width}}  {'images':>7}  {'top-1':>7}"
        f"{'    top-5' if with_top5 else ''}  most often taken for"
    ]
    for number, name in zip(listed, names, strict=True):
        images, top1, top5 = report.per_class[number]
        five = f"  {top5 / images:>7.1%}" if with_top5 else ""
        other = taken_for.get(number)
        text = f"  {short(report.classes[other[0]])} ({other[1]:,})" if other else ""
        lines.append(f"{name:<{width}}  {images:>7,}  {top1 / images:>7.1%}{five}{text}")
    if more := len(order) - len(listed):
        lines.append(f"and {plural(more, 'more class')}: --all-classes shows them")
    if absent := len(report.classes) - len(order):
        lines.append(f"{plural(absent, 'class')} of the model without images here")
    return lines


def confusion_lines(report: EvaluationReport, most: int = MOST_PAIRS) -> list[str]:
    """The pairs of classes with the most errors, both directions together."""
    errors = report.images - report.top1
    pairs: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for row in report.confusions:
        pairs.setdefault((min(row[:2]), max(row[:2])), []).append(row)
    ordered = sorted(pairs.values(), key=lambda rows: -sum(row[2] for row in rows))
    if not ordered:
        return []
    lines = ["", f"the confusions that matter, of {plural(errors, 'error')}"]
    for rows in ordered[:most]:
        count = sum(row[2] for row in rows)
        texts = [direction(report, row) for row in rows]
        lines.append(f"  {count:>6,}  {count / errors:>6.1%}  {', '.join(texts)}")
    return lines


def direction(report: EvaluationReport, row: Sequence[int]) -> str:
    true, predicted, count = row
    images = report.per_class[true][0]
    return (
        f"{short(report.classes[true])} taken for {short(report.classes[predicted])} "
        f"({count:,} of {images:,})"
    )


def worst_lines(report: EvaluationReport) -> list[str]:
    """The samples with the highest loss."""
    if not report.worst:
        return []
    return [
        "",
        f"highest loss of {plural(report.images, 'image')}: are these labels right?",
        f"  {'loss':>6}  label, what the model answers, path",
        *(worst_line(report, row) for row in report.worst),
    ]


def worst_line(report: EvaluationReport, row: WorstSample) -> str:
    loss = "NaN" if row.loss is None else f"{row.loss:.2f}"
    answer = "no prediction"
    if row.predicted is not None:
        answer = f"{share_of(row)}{short(report.classes[row.predicted])}"
    label = short(report.classes[row.label])
    return f"  {loss:>6}  {label}, {answer}, {one_line(printable(row.path))}"


def share_of(row: WorstSample) -> str:
    """The probability of a prediction, with a space behind it; empty where it is not finite."""
    return "" if row.probability is None else f"{row.probability:.0%} "


def class_table(report: EvaluationReport) -> str:
    """All classes as CSV, in the order of the model."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["class", "images", "top1", "top5", "top1_share", "top5_share"])
    for name, (images, top1, top5) in zip(report.classes, report.per_class, strict=True):
        shares: list[Any] = [top1 / images, top5 / images] if images else ["", ""]
        rows.writerow([harmless_cell(name), images, top1, top5, *shares])
    return text.getvalue()


def figures_of(report: EvaluationReport, facts: EvaluationFacts) -> dict[str, Any]:
    """Everything about an evaluation, as plain data."""
    rate = report.images / max(facts.seconds, 1e-9)
    return report_data(report, **asdict(facts), images_per_s=round(rate, 1))
