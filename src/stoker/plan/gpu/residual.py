"""What measured architectures near a model say about the error of its sum of terms.

Invariant: a Gaussian process over the logarithm of measured by modelled time. Far from everything
measured the correction is 0 and `newness` is 1; on a measured architecture newness is near 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LENGTH = 0.5
"""Distance over which two architectures run alike."""
SPREAD = 0.15
"""Standard deviation of the logarithm of the error of the terms."""
NOISE = 0.03
"""The same of one measurement: the same architecture under two names differs by as much."""
MOST = 0.5
"""Larger errors of the terms are cut: they are faults of one row, not of an architecture."""


@dataclass(frozen=True)
class Residuals:
    """The corrections that measured rows give."""

    places: np.ndarray
    """A row of `terms.likeness` for each measured row."""
    weights: np.ndarray
    inverse: np.ndarray

    def near(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each place: the logarithm of the factor to multiply its time with, and newness."""
        close = kernel(places, self.places)
        known = np.einsum("ij,jk,ik->i", close, self.inverse, close) * SPREAD**2
        return SPREAD**2 * close @ self.weights, np.clip(1 - known, 0.0, 1.0)


def kernel(places: np.ndarray, others: np.ndarray) -> np.ndarray:
    """How alike two architectures run: 1 for the same place, 0 far away."""
    squares = ((places[:, None] - others[None]) ** 2).sum(-1)
    close: np.ndarray = np.exp(-squares / (2 * LENGTH**2))
    return close


def residuals(places: np.ndarray, errors: np.ndarray) -> Residuals:
    """Corrections from rows at `places` whose time is exp(errors) times what their terms say."""
    noisy = SPREAD**2 * kernel(places, places) + NOISE**2 * np.eye(len(places))
    inverse = np.linalg.inv(noisy)
    return Residuals(places, inverse @ np.clip(errors, -MOST, MOST), inverse)
