"""Answers add up to what a direct formula gives, in any order of the ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.run.evaluation import BINS, EvaluationReport
from stoker.train.evaluate import NO_PREDICTION, Accuracy, Answers
from stoker.train.records.tally import (
    calibration,
    class_counts,
    confusions_of,
    highest_losses,
    report_of,
    worst_samples,
)

NAN = float("nan")
probabilities = st.one_of(
    st.floats(0, 1, width=32), st.sampled_from([0.0, 1.0, NAN, *(k / BINS for k in range(BINS))])
)


def direct_ece(pairs: list[tuple[float, bool]]) -> float | None:
    """The definition: the mean distance of accuracy and confidence, weighted by images."""
    known = [(float(np.float32(p)), right) for p, right in pairs if not np.isnan(p)]
    if not known:
        return None
    error = 0.0
    for number in range(BINS):
        inside = [
            (p, right)
            for p, right in known
            if number < p * BINS <= number + 1 or (number == 0 and p == 0)
        ]
        if inside:
            confidence = sum(p for p, _ in inside) / len(inside)
            accuracy = sum(right for _, right in inside) / len(inside)
            error += len(inside) / len(known) * abs(accuracy - confidence)
    return error


@given(st.lists(st.tuples(probabilities, st.booleans()), max_size=60))
def test_calibration_is_the_definition(pairs: list[tuple[float, bool]]) -> None:
    values = np.array([p for p, _ in pairs], np.float32)
    ece, bins = calibration(values, np.array([right for _, right in pairs], bool))
    expected = direct_ece(pairs)
    assert (ece is None) == (expected is None)
    if ece is not None and expected is not None:
        assert ece == pytest.approx(expected, abs=1e-9)
    assert len(bins) == BINS
    assert sum(images for images, _, _ in bins) == sum(not np.isnan(p) for p, _ in pairs)


def test_a_sure_and_right_model_is_calibrated() -> None:
    assert calibration(np.ones(9, np.float32), np.ones(9, bool))[0] == 0
    assert calibration(np.ones(8, np.float32), np.arange(8) < 4)[0] == 0.5


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 4)), max_size=80), st.integers(1, 9))
def test_confusions_are_all_errors_with_a_prediction(
    pairs: list[tuple[int, int]], most: int
) -> None:
    labels = np.array([true for true, _ in pairs], np.int64)
    predicted = np.array([answer for _, answer in pairs], np.int32)
    wrong = [pair for pair in pairs if pair[0] != pair[1] and pair[1] >= 0]
    rows, kinds = confusions_of(labels, predicted, 5)
    assert {(true, answer): count for true, answer, count in rows} == {
        pair: wrong.count(pair) for pair in wrong
    }
    assert kinds == len(rows) == len(set(wrong))
    assert rows == sorted(rows, key=lambda row: (-row[2], row[0], row[1]))
    assert confusions_of(labels, predicted, 5, most) == (rows[:most], kinds)


losses = st.lists(st.sampled_from([0.0, 0.5, 0.5, 2.0, 7.5, float("inf"), NAN]), max_size=40)


@given(losses, st.integers(0, 50))
def test_the_highest_losses_come_first_and_ties_by_number(values: list[float], most: int) -> None:
    keys = [float("inf") if np.isnan(value) else value for value in values]
    expected = sorted(range(len(values)), key=lambda n: (-keys[n], n))[:most]
    assert highest_losses(np.array(values, np.float32), most).tolist() == expected


def test_class_counts() -> None:
    labels, ahead = np.array([0, 0, 2, 2, 2]), np.array([0, 3, 0, 5, 9], np.int32)
    assert class_counts(labels, ahead, 4) == [(2, 1, 2), (0, 0, 0), (3, 1, 1), (0, 0, 0)]


def some_answers() -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Answers]:
    labels = np.array([0, 1, 2, 2], np.int64)
    return labels, Answers(
        predicted=np.array([0, 2, NO_PREDICTION, 2], np.int32),
        probability=np.array([0.9, 0.6, NAN, 0.5], np.float32),
        loss=np.array([0.1, 2.5, NAN, 0.7], np.float32),
        ahead=np.array([0, 1, 8, 0], np.int32),
    )


def report() -> EvaluationReport:
    labels, answers = some_answers()
    return report_of("val", ["a", "b", "c", "d"], labels, Accuracy(4, 2, 3, NAN), answers)


def test_a_report_counts_what_has_no_prediction_apart() -> None:
    made = report()
    assert (made.unpredicted, made.confusions, made.loss) == (1, [(1, 2, 1)], None)
    assert made.per_class == [(1, 1, 1), (1, 0, 1), (2, 1, 1), (0, 0, 0)]
    assert made.macro == pytest.approx((1 + 0 + 0.5) / 3)  # the class without images is left out


def test_worst_samples_have_their_number_in_the_split() -> None:
    labels, answers = some_answers()
    chosen = highest_losses(answers.loss, 2)
    rows = worst_samples(chosen, np.array([5, 6, 7, 9]), ["p", "q"], labels, answers)
    assert [(row.sample, row.path, row.label) for row in rows] == [(7, "p", 2), (6, "q", 1)]
    assert (rows[0].predicted, rows[0].probability, rows[0].loss) == (None, None, None)
    assert (rows[1].predicted, rows[1].loss) == (2, 2.5)


def test_nothing_is_added_up_to_nothing() -> None:
    empty = np.empty(0, np.float32)
    assert calibration(empty, empty.astype(bool))[0] is None
    assert len(highest_losses(empty, 5)) == 0
