"""How much an image of each class counts in the loss of training, from the counts of a split.

Invariant: the mean weight over the images of the split is 1, so that the learning rate keeps its
meaning. A class without images has the weight 1, which nothing uses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stoker.text import plural, shown

OFF = "off"


def class_weights(how: str, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """A weight for each class: in proportion to 1/count (`balanced`) or 1/sqrt(count) (`sqrt`)."""
    present = counts > 0
    weights = np.ones(len(counts))
    if how == OFF or not present.any():
        return weights
    some = counts[present].astype(np.float64)
    share = 1 / some if how == "balanced" else 1 / np.sqrt(some)
    weights[present] = share * (some.sum() / (share * some).sum())
    return weights


def weights_note(how: str, counts: NDArray[np.int64], classes: Sequence[str]) -> str:
    """The smallest and the largest weight, with their classes."""
    weights, present = class_weights(how, counts), np.flatnonzero(counts)
    low = present[np.argmin(weights[present])]
    high = present[np.argmax(weights[present])]
    ends = [
        f"{weights[one]:.3g} ('{shown(classes[one])}', {plural(int(counts[one]), 'image')})"
        for one in (low, high)
    ]
    if weights[low] == weights[high]:
        return f"class weights are 1: every class has {plural(int(counts[low]), 'image')}"
    return f"class weights from {ends[0]} to {ends[1]}; the logged loss is without them"
