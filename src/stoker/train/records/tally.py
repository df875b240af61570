"""What the answers of an evaluation add up to: classes, confusions, calibration, worst samples.

Invariants: pure functions of arrays in the order of the samples, so the same answers give the same
report at any world size. Each sample counts once. A sample without a prediction (a logit is NaN) is
wrong, is no confusion of two classes, and is left out of calibration.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stoker.run.evaluation import (
    BINS,
    MOST_CONFUSIONS,
    Counts,
    EvaluationReport,
    WorstSample,
    finite,
)
from stoker.train.evaluate import Accuracy, Answers

Ints = NDArray[np.int64]


def report_of(
    split: str, classes: list[str], labels: Ints, accuracy: Accuracy, answers: Answers
) -> EvaluationReport:
    """The report on the samples with these labels, without its worst samples."""
    confusions, pairs = confusions_of(labels, answers.predicted, len(classes))
    ece, bins = calibration(answers.probability, answers.predicted == labels)
    return EvaluationReport(
        split=split,
        images=accuracy.images,
        top1=accuracy.top1,
        top5=accuracy.top5,
        loss=finite(accuracy.loss),
        classes=classes,
        per_class=class_counts(labels, answers.ahead, len(classes)),
        confusions=confusions,
        confused_pairs=pairs,
        unpredicted=int((answers.predicted < 0).sum()),
        ece=ece,
        bins=bins,
    )


def class_counts(labels: Ints, ahead: NDArray[np.int32], classes: int) -> list[Counts]:
    """For each class: images, top-1 hits, top-5 hits."""
    chosen = (labels, labels[ahead < 1], labels[ahead < 5])
    columns = [np.bincount(some, minlength=classes).tolist() for some in chosen]
    return list(zip(*columns, strict=True))


def confusions_of(
    labels: Ints, predicted: NDArray[np.int32], classes: int, most: int = MOST_CONFUSIONS
) -> tuple[list[Counts], int]:
    """The pairs (class, predicted class) that are confused, with their images: the most frequent
    first, of equal ones the lower classes; at most `most` of them, and how many there are."""
    wrong = (predicted >= 0) & (predicted != labels)
    keys, counts = np.unique(labels[wrong] * classes + predicted[wrong], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    true, answer = np.divmod(keys[order], classes)
    rows = zip(true.tolist(), answer.tolist(), counts[order].tolist(), strict=True)
    return list(rows), len(keys)


def calibration(
    probability: NDArray[np.float32], is_right: NDArray[np.bool_]
) -> tuple[float | None, list[tuple[int, int, float]]]:
    """The expected calibration error and its bins: images, hits, mean probability. A bin holds the
    probabilities above its lower edge, up to its upper edge."""
    known = np.isfinite(probability)
    sure, right = probability[known].astype(np.float64), is_right[known]
    places = np.clip(np.ceil(sure * BINS).astype(np.int64) - 1, 0, BINS - 1)
    images = np.bincount(places, minlength=BINS)
    hits = np.bincount(places[right], minlength=BINS)
    sums = np.bincount(places, weights=sure, minlength=BINS)
    means = sums / np.maximum(images, 1)
    bins = list(zip(images.tolist(), hits.tolist(), means.tolist(), strict=True))
    if not len(sure):
        return None, bins
    return float(np.abs(hits - sums).sum() / len(sure)), bins


def highest_losses(loss: NDArray[np.float32], most: int) -> Ints:
    """The numbers of the samples with the highest loss, the highest first; of equal ones the first
    sample. A loss that is NaN is higher than any other."""
    keys = np.where(np.isnan(loss), np.inf, loss)
    most = min(most, len(keys))
    if not most:
        return np.empty(0, np.int64)
    least = np.partition(keys, len(keys) - most)[len(keys) - most]
    candidates = np.flatnonzero(keys >= least)
    return candidates[np.argsort(-keys[candidates], kind="stable")][:most]


def worst_samples(
    chosen: Ints, samples: Ints, paths: list[str], labels: Ints, answers: Answers
) -> list[WorstSample]:
    """The records of some answers. `samples` has the number in the split of each answer, `paths`
    the path of each chosen one."""
    rows = zip(chosen.tolist(), paths, strict=True)
    return [
        WorstSample(
            sample=int(samples[number]),
            path=path,
            label=int(labels[number]),
            predicted=int(answers.predicted[number]) if answers.predicted[number] >= 0 else None,
            probability=finite(float(answers.probability[number])),
            loss=finite(float(answers.loss[number])),
        )
        for number, path in rows
    ]
