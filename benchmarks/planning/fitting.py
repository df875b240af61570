"""Non-negative coefficients for relative errors, robust against single rows."""

from __future__ import annotations

import numpy as np

STEPS = 12
BEND = 0.08
"""Relative errors above this count by their size, below by their square."""
RIDGE = 1e-4


def non_negative(products: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The non-negative x with the least |A x - b|, from A'A and A'b (Lawson and Hanson)."""
    count = len(targets)
    active, solution = np.zeros(count, bool), np.zeros(count)
    slope, rounds = targets.copy(), 0
    least = 1e-10 * np.abs(targets).max()
    while not active.all() and slope[~active].max() > least and rounds < 30 * count:
        active[np.argmax(np.where(active, -np.inf, slope))] = True
        while True:
            rounds += 1
            trial = np.zeros(count)
            inner = products[np.ix_(active, active)]
            trial[active] = np.linalg.lstsq(inner, targets[active], rcond=None)[0]
            if trial[active].min() > 0 or rounds >= 30 * count:
                break
            down = active & (trial <= 0)
            step = np.min(solution[down] / (solution[down] - trial[down]))
            solution = solution + step * (trial - solution)
            active &= solution > 1e-14
            solution[~active] = 0
        solution = np.maximum(trial, 0)
        slope = targets - products @ solution
    return solution


def coefficients(terms: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The coefficients of a sum of terms that comes nearest to measured seconds, relative."""
    relative = terms / seconds[:, None]
    scale = relative.mean(0) + 1e-30
    relative = relative / scale
    weights, ridge = np.ones(len(seconds)), RIDGE * np.eye(terms.shape[1])
    solution = np.zeros(terms.shape[1])
    for _ in range(STEPS):
        weighted = relative * weights[:, None]
        solution = non_negative(weighted.T @ relative + ridge, weighted.sum(0))
        ratio = relative @ solution
        errors = np.abs(np.log(np.maximum(ratio, 1e-3)))
        weights = np.minimum(1, BEND / np.maximum(errors, 1e-9)) / np.maximum(ratio, 0.3)
    return solution / scale
