"""An evaluation as a person reads it."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from evaluations import CLASSES, report
from golden import check_golden
from stoker.run.evaluation import BINS, EvaluationReport, report_bytes
from stoker.show.use.evaluate import (
    EvaluationFacts,
    class_table,
    evaluation_lines,
    figures_of,
    short,
    worst_lines,
)


def facts(**changes: Any) -> EvaluationFacts:
    values: dict[str, Any] = {
        "model": "runs/photos, checkpoint 000000008",
        "step": 8,
        "data": "photos-packed",
        "is_training_set": True,
        "seconds": 2.0,
        "ranks": 1,
        "tta": "",
        "left_out": {},
    }
    return EvaluationFacts(**{**values, **changes})


def many_classes() -> EvaluationReport:
    names = [f"class number {n} with a name that is much too long" for n in range(30)]
    return report(
        classes=names,
        per_class=[(10, min(n, 10), 10) for n in range(30)],
        images=300,
        top1=sum(min(n, 10) for n in range(30)),
        top5=300,
        confusions=[(n, (n + 1) % 30, 10 - n) for n in range(10)],
    )


def test_lines_golden() -> None:
    two = report(
        classes=["a", "b"],
        per_class=[(2, 2, 2), (1, 1, 1)],
        images=3,
        top1=3,
        top5=3,
        confusions=[],
        unpredicted=0,
        worst=[],
        loss=None,
        ece=None,
        bins=[(0, 0, 0.0)] * BINS,
        split="train",
    )
    unknown = {f"new{n}": 10 - n for n in range(7)}
    lines = [
        *evaluation_lines(report(), facts(ranks=2, tta="hflip", left_out=unknown)),
        *worst_lines(report()),
        "---- all right, two classes, another set",
        *evaluation_lines(two, facts(is_training_set=False)),
        *worst_lines(two),
        "---- the training images",
        *evaluation_lines(two, facts())[:4],
        "---- many classes",
        *evaluation_lines(many_classes(), facts()),
    ]
    check_golden("show_evaluate", lines)


def test_all_classes_are_shown_where_asked_for() -> None:
    lines = evaluation_lines(many_classes(), facts(), all_classes=True)
    assert sum(line.startswith("class number") for line in lines) == 30


def test_names_are_one_printable_line() -> None:
    assert short("a\x1b[2Jb\nc") == "a\\x1b[2Jb\\nc"
    assert len(short("x" * 99)) == 32
    hostile = report(classes=["\x1b]0;owned\x07", *CLASSES[1:]])
    lines = [*evaluation_lines(hostile, facts()), *worst_lines(hostile)]
    assert all(line.isprintable() for line in lines)


def test_the_table_has_every_class() -> None:
    made = report(classes=['"quoted", with comma', "=1+1", *CLASSES[2:]])
    rows = list(csv.DictReader(io.StringIO(class_table(made))))
    assert [row["class"] for row in rows] == [made.classes[0], "'=1+1", *made.classes[2:]]
    assert [int(row["top1"]) for row in rows] == [row[1] for row in made.per_class]
    assert rows[-1]["top1_share"] == ""


def test_figures_are_plain_data() -> None:
    figures = json.loads(report_bytes(figures_of(report(), facts())))
    assert (figures["top1"], figures["images_per_s"], figures["step"]) == (19, 15.0, 8)
    assert figures["worst"][1]["predicted"] is None
