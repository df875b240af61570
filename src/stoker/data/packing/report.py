"""The report on a set: counts, sizes, class balance, rejected and ignored files, duplicates.

Invariant: a pure function from the index tables to plain data.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.data.columns import numbers
from stoker.data.packing.duplicates import duplicates, with_repeated
from stoker.data.packing.shard import PartCounts
from stoker.data.sources.layout import Ignored, Listing


def describe(
    listing: Listing[Any],
    tables: dict[str, pa.Table],
    rejects: pa.Table,
    counts: PartCounts | None = None,
) -> dict[str, Any]:
    """The report that is stored in dataset.json and printed after packing. `counts` are those of
    these tables, where they were counted before; the report is the same without them."""
    names = listing.classes
    per_class = (
        counts.labels
        if counts
        else {
            split: np.bincount(numbers(table, "label"), minlength=len(names))
            for split, table in tables.items()
        }
    )
    rejected = [(row["path"], kind_of(row["reason"])) for row in rejects.to_pylist()]
    return {
        "images": {split: table.num_rows for split, table in tables.items()},
        "sizes": sizes(tables),
        "balance": balance(per_class["train"], names),
        "absent": {
            split: [names[number] for number in np.flatnonzero(counts == 0)]
            for split, counts in per_class.items()
            if (counts == 0).any()
        },
        "rotated": sum(int((numbers(t, "orientation") > 1).sum()) for t in tables.values()),
        "rejected": by_reason(rejected, "images"),
        "ignored": by_reason(listing.ignored, "entries"),
        "duplicates": duplicates(with_repeated(tables, counts.repeated) if counts else tables),
    }


def sizes(tables: dict[str, pa.Table]) -> dict[str, Any]:
    """Stored sizes: the smallest, median and largest in pixels, and the sum in bytes."""
    table = pa.concat_tables(tables.values())
    width, height = numbers(table, "width"), numbers(table, "height")
    shape = [[int(f(width)), int(f(height))] for f in (np.min, np.median, np.max)]
    return {"pixels": shape, "bytes": int(numbers(table, "length").sum())}


def balance(counts: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The smallest and the largest class of the training split, and the median."""
    smallest, largest = int(counts.argmin()), int(counts.argmax())
    return {
        "fewest": [names[smallest], int(counts[smallest])],
        "median": int(np.median(counts)),
        "most": [names[largest], int(counts[largest])],
    }


def kind_of(reason: str) -> str:
    """A reason without the details of one image. A server's answer is kept whole."""
    return reason if reason.startswith("download:") else reason.split(":")[0].split(" (")[0]


def by_reason(entries: Ignored, unit: str) -> list[dict[str, Any]]:
    """Paths with a reason, counted by reason, most frequent first, each with its first path."""
    counts = Counter(reason for _, reason in entries)
    examples = {reason: path for path, reason in reversed(entries)}
    return [
        {"reason": reason, unit: count, "example": examples[reason]}
        for reason, count in counts.most_common()
    ]
