"""What is counted in the rows of a split while its index is written.

Invariant: memory does not grow with the number of images: only with the number of classes, and of
different widths and heights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stoker.data.index.columns import numbers
from stoker.data.index.read import COLUMNS, TEXTS, Index, even_side, hashes_of

Ints = NDArray[np.int64]


class SplitSummary:
    """The counts of a split; those of several can be added up."""

    def __init__(self, classes: int, codec: str) -> None:
        self._codec = codec
        self.images = self.stored_bytes = self.rotated = 0
        self.labels = np.zeros(classes, np.int64)
        self.widths, self.heights = Counter[int](), Counter[int]()
        self._largest = [0, 0]
        self._sides = set[int]()

    def add(self, rows: pa.Table) -> None:
        """Count the rows of a part of the index, without the rejected images."""
        if not rows.num_rows:
            return
        columns = {name: numbers(rows, name) for name in COLUMNS if name not in (*TEXTS, "hash")}
        index = Index(**columns, hashes=hashes_of(rows))
        self.images += rows.num_rows
        self.stored_bytes += int(index.length.astype(np.int64).sum())
        self.rotated += int((numbers(rows, "orientation") > 1).sum())
        self.labels += np.bincount(index.label, minlength=len(self.labels))
        self._sides.add(even_side(index, self._codec))
        pixels = index.width.astype(np.int64) * index.height
        largest = int(index.length.max()), int(pixels.max())
        self._largest = [max(pair) for pair in zip(self._largest, largest, strict=True)]
        for counts, column in ((self.widths, index.width), (self.heights, index.height)):
            values, times = np.unique(column, return_counts=True)
            counts.update(dict(zip(values.tolist(), times.tolist(), strict=True)))

    @property
    def largest(self) -> list[int]:
        """Bytes of the largest stored image, and pixels of the largest one."""
        return list(self._largest)

    @property
    def even_side(self) -> int:
        """The side of the images, where all are raw squares of one size at even distances; or 0."""
        return next(iter(self._sides)) if len(self._sides) == 1 else 0


def middle(counts: Iterable[Counter[int]]) -> tuple[int, int, int]:
    """The smallest, the median and the largest of some counted values, rounded down."""
    together = sum(counts, Counter[int]())
    values = sorted(together)
    ends = np.cumsum([together[value] for value in values])
    half = [int(np.searchsorted(ends, place, side="right")) for place in halves(int(ends[-1]))]
    return values[0], sum(values[place] for place in half) // 2, values[-1]


def halves(count: int) -> tuple[int, int]:
    """The places of the one or two values in the middle of so many."""
    return (count - 1) // 2, count // 2
