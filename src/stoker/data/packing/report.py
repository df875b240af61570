"""The report on a set: counts, sizes, class balance, rejected and ignored files, duplicates.

Invariant: a pure function from what was counted in the index tables to plain data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.data.packing.duplicates import duplicates
from stoker.data.packing.shard import PartCounts
from stoker.data.packing.tables.summary import SplitSummary, middle
from stoker.data.sources.layout import Ignored, Listing


def describe(
    listing: Listing[Any],
    summaries: dict[str, SplitSummary],
    rejects: pa.Table,
    rows: dict[str, pa.Table],
    counts: PartCounts | None = None,
) -> dict[str, Any]:
    """The report that is stored in dataset.json and printed after packing. `rows` are all that may
    be duplicates; `counts` are those of the splits, where they were counted before."""
    names = listing.classes
    per_class = counts.labels if counts else {split: one.labels for split, one in summaries.items()}
    rejected = [(row["path"], kind_of(row["reason"])) for row in rejects.to_pylist()]
    return {
        "images": {split: summary.images for split, summary in summaries.items()},
        "sizes": sizes(summaries.values()),
        "balance": balance(per_class["train"], names),
        "absent": {
            split: [names[number] for number in np.flatnonzero(counts == 0)]
            for split, counts in per_class.items()
            if (counts == 0).any()
        },
        "rotated": sum(summary.rotated for summary in summaries.values()),
        "rejected": by_reason(rejected, "images"),
        "ignored": by_reason(listing.ignored, "entries"),
        "duplicates": duplicates(rows),
    }


def sizes(summaries: Collection[SplitSummary]) -> dict[str, Any]:
    """Stored sizes: the smallest, median and largest in pixels, and the sum in bytes."""
    widths = middle(summary.widths for summary in summaries)
    heights = middle(summary.heights for summary in summaries)
    shape = [list(pair) for pair in zip(widths, heights, strict=True)]
    return {"pixels": shape, "bytes": sum(summary.stored_bytes for summary in summaries)}


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
