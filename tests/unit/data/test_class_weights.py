"""Class weights: rare classes count more, and the mean over the images is 1."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import check_golden
from stoker.data.class_weights import class_weights, weights_note

COUNTS = st.lists(st.integers(0, 10_000), min_size=1, max_size=50).map(np.array)


@given(COUNTS, st.sampled_from(["balanced", "sqrt"]))
def test_the_mean_over_the_images_is_one(counts: np.ndarray, how: str) -> None:
    weights = class_weights(how, counts)
    assert (weights > 0).all()
    if counts.sum():
        assert (weights * counts).sum() / counts.sum() == pytest.approx(1)


def test_balanced_classes_count_the_same_in_sum() -> None:
    counts = np.array([10, 40, 0, 50])
    totals = class_weights("balanced", counts) * counts
    assert totals[[0, 1, 3]] == pytest.approx([100 / 3] * 3)


def test_sqrt_is_between() -> None:
    counts = np.array([100, 400])
    low, high = class_weights("sqrt", counts)[::-1]
    assert high / low == pytest.approx(2)
    assert class_weights("off", counts).tolist() == [1, 1]


def test_golden_notes() -> None:
    names = ["daisy", "rose\x1b[31m", "tulip"]
    lines = [
        weights_note("balanced", np.array([10, 1, 200]), names),
        weights_note("sqrt", np.array([10, 0, 200]), names),
        weights_note("balanced", np.array([10, 10, 10]), names),
    ]
    check_golden("data_class_weights", lines)
