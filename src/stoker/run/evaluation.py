"""The result of a run's last evaluation, class by class: `evaluation.json`.

Invariants: the file is replaced as a whole, so a reader sees the old result or the new one. What is
read from it is checked here, once: types, ranges, and that counts fit each other. A number that is
not finite is written as null, so that any JSON reader takes the file.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stoker.errors import BadRequest, is_readable
from stoker.host.plain_file import read_plain
from stoker.run.kinds import (
    Field,
    Required,
    fits,
    is_count,
    is_number,
    is_text,
    is_whole,
    list_of,
    misfit,
    optional,
)
from stoker.text import one_line

NAME = "evaluation.json"
FORMAT = 1
"""Format number of evaluation.json."""
BINS = 15
"""Ranges of the predicted probability, equally wide, over which calibration is measured."""
MOST_CONFUSIONS = 10_000
MOST_WORST = 100

Counts = tuple[int, int, int]


@dataclass(frozen=True)
class WorstSample:
    """One of the samples with the highest loss. A number is None where it is not finite."""

    sample: int
    path: str
    """Where the image came from, when it was packed."""
    label: int
    predicted: int | None
    """None where a logit is NaN."""
    probability: float | None
    """Of the predicted class."""
    loss: float | None


@dataclass(frozen=True)
class EvaluationReport:
    """What a model gets right on a split, and what it takes for what."""

    split: str
    images: int
    top1: int
    top5: int
    loss: float | None
    classes: list[str]
    per_class: list[Counts]
    """For each class: images, top-1 hits, top-5 hits."""
    confusions: list[Counts]
    """[class, predicted class, images], the most frequent first, at most MOST_CONFUSIONS."""
    confused_pairs: int
    """How many such pairs there are in all."""
    unpredicted: int
    """Images without a prediction: a logit is NaN."""
    ece: float | None
    """Expected calibration error over `bins`; None where no probability is finite."""
    bins: list[tuple[int, int, float]]
    """For each of BINS ranges of the predicted probability: images, hits, mean probability."""
    worst: list[WorstSample] = field(default_factory=list)
    """The samples with the highest loss, the highest first."""

    @property
    def macro(self) -> float:
        """The mean over classes of the share of right answers; classes without images are left
        out."""
        shares = [top1 / images for images, top1, _ in self.per_class if images]
        return sum(shares) / max(len(shares), 1)


def report_data(report: EvaluationReport, **facts: Any) -> dict[str, Any]:
    """The report as plain data, after other facts; numbers that are not finite are None."""
    values = asdict(report)
    values["loss"] = None if report.loss is None else finite(report.loss)
    return {"format": FORMAT, **facts, **values, "macro": report.macro}


def finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def report_bytes(data: dict[str, Any]) -> bytes:
    """The content of evaluation.json. A row of counts takes one line."""
    parts = []
    for key, value in data.items():
        if isinstance(value, list) and value and not isinstance(value[0], str):
            text = "[\n  " + ",\n  ".join(map(plain_json, value)) + "\n ]"
        else:
            text = plain_json(value)
        parts.append(f" {plain_json(key)}: {text}")
    # Names from files may hold surrogates, which UTF-8 has no bytes for.
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode("utf-8", "backslashreplace")


def plain_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _row_of(*checks: Any) -> Any:
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(checks)
        and all(check(part) for check, part in zip(checks, value, strict=True))
    )


_WORST = {
    "sample": Field(is_whole, Required),
    "path": Field(is_text, Required),
    "label": Field(is_whole, Required),
    "predicted": Field(optional(is_whole), Required),
    "probability": Field(optional(is_number), Required),
    "loss": Field(optional(is_number), Required),
}
_REPORT = {
    "split": Field(is_text, Required),
    "images": Field(is_count, Required),
    "top1": Field(is_whole, Required),
    "top5": Field(is_whole, Required),
    "loss": Field(optional(is_number), Required),
    "classes": Field(list_of(is_text), Required),
    "per_class": Field(list_of(_row_of(is_whole, is_whole, is_whole)), Required),
    "confusions": Field(list_of(_row_of(is_whole, is_whole, is_count)), Required),
    "confused_pairs": Field(is_whole, Required),
    "unpredicted": Field(is_whole, Required),
    "ece": Field(optional(is_number), Required),
    "bins": Field(list_of(_row_of(is_whole, is_whole, is_number)), Required),
    "worst": Field(list_of(fits(_WORST)), Required),
}
_PLACE = {"step": Field(is_whole, Required), "position": Field(is_whole, Required)}


@dataclass(frozen=True)
class KeptEvaluation:
    """The last evaluation of a run, and where in the run it was made."""

    step: int
    position: int
    report: EvaluationReport


def read_evaluation(run_path: Path) -> KeptEvaluation | None:
    """The last evaluation of a run; None where there is none. Raises BadRequest where the file is
    damaged or newer."""
    file = run_path / NAME
    try:
        if not file.exists():
            return None
        data = json.loads(read_plain(file).decode())
        if not isinstance(data, dict):
            raise ValueError("it is not a JSON object")
        if not is_readable(file, data.get("format"), FORMAT):
            raise ValueError(f"its format is {data.get('format')!r}")
        if name := misfit(data, _PLACE) or misfit(data, _REPORT) or contradiction(data):
            raise ValueError(f"its '{name}' is {'wrong' if name in data else 'missing'}")
    except (OSError, ValueError, RecursionError) as error:
        raise BadRequest(
            f"{file} is damaged ({one_line(str(error))}): remove it; the next evaluation of the "
            "run writes it again"
        ) from error
    rows = {name: [tuple(row) for row in data[name]] for name in ("per_class", "confusions")}
    values = {name: data[name] for name in _REPORT if name not in (*rows, "bins", "worst")}
    worst = [WorstSample(**{key: row[key] for key in _WORST}) for row in data["worst"]]
    bins = [tuple(row) for row in data["bins"]]
    report = EvaluationReport(**values, **rows, bins=bins, worst=worst)  # type: ignore[arg-type]
    return KeptEvaluation(data["step"], data["position"], report)


def contradiction(data: dict[str, Any]) -> str | None:
    """The first field that does not fit the others; None where all do."""
    classes = len(data["classes"])
    rows = data["per_class"]
    ordered = all(top1 <= top5 <= images for images, top1, top5 in rows)
    if not classes or len(set(data["classes"])) < classes:
        return "classes"
    if len(rows) != classes or not ordered:
        return "per_class"
    for number, name in enumerate(("images", "top1", "top5")):
        if sum(row[number] for row in rows) != data[name]:
            return name
    confused = sum(row[2] for row in data["confusions"])
    inside = all(max(row[:2]) < classes and row[0] != row[1] for row in data["confusions"])
    if not inside or confused > data["images"] - data["top1"]:
        return "confusions"
    if len(data["bins"]) != BINS or any(hits > images for images, hits, _ in data["bins"]):
        return "bins"
    if any(max(row["label"], row["predicted"] or 0) >= classes for row in data["worst"]):
        return "worst"
    return None
