"""Corrections hold near what was measured and are nothing far from it."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.plan.gpu.residual import MOST, residuals


def test_near_a_measured_row_its_error_counts_and_far_away_nothing() -> None:
    chance = np.random.default_rng(0)
    places = chance.normal(size=(40, 3))
    errors = 0.1 * places[:, 0]
    found = residuals(places, errors)
    correction, newness = found.near(places)
    assert correction == pytest.approx(errors, abs=0.04)
    assert newness.max() < 0.2
    correction, newness = found.near(places + 100)
    assert np.abs(correction).max() < 1e-9
    assert newness.min() > 0.999


def test_a_wild_row_is_cut() -> None:
    correction, _ = residuals(np.zeros((1, 2)), np.array([9.0])).near(np.zeros((1, 2)))
    assert 0 < correction[0] < MOST
