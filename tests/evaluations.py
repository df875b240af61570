"""A report on an evaluation, made by hand, and an evaluation.json of it."""

from __future__ import annotations

import json
from typing import Any

from stoker.run.evaluation import BINS, EvaluationReport, WorstSample, report_bytes, report_data

CLASSES = ["cat", "dog", "fox", "owl", "bee", "hen", "yak"]


def report(**changes: Any) -> EvaluationReport:
    """A report on 30 images: the model takes dogs for cats, and the other way round."""
    values: dict[str, Any] = {
        "split": "val",
        "images": 30,
        "top1": 19,
        "top5": 28,
        "loss": 0.75,
        "classes": CLASSES,
        "per_class": [
            (10, 6, 9),
            (10, 3, 9),
            (4, 4, 4),
            (3, 3, 3),
            (2, 2, 2),
            (1, 1, 1),
            (0, 0, 0),
        ],
        "confusions": [(1, 0, 6), (0, 1, 2), (0, 2, 2)],
        "confused_pairs": 3,
        "unpredicted": 1,
        "ece": 0.0512,
        "bins": [(2, 1, 0.5)] * BINS,
        "worst": [
            WorstSample(17, "dog/17.jpg", 1, 0, 0.97, 6.25),
            WorstSample(4, "cat/4.jpg", 0, None, None, None),
        ],
    }
    return EvaluationReport(**{**values, **changes})


def data(**changes: Any) -> dict[str, Any]:
    """The content of an evaluation.json, with some fields changed; `...` leaves one out."""
    made = json.loads(report_bytes(report_data(report(), step=8, position=256)))
    return {key: value for key, value in {**made, **changes}.items() if value is not ...}
