"""Duplicates in a set: equal pixel for pixel, and, on request, nearly equal.

Invariants: pure functions of the index tables. The `look` of an image is a hash of 64 bits that
changes little when the image is resized or encoded again. Every pair whose looks differ in at most
`MOST_BITS` bits is found: such a pair agrees in at least one of four parts of the bits, so only
images that agree in a part are compared. Looks of plain surfaces are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stoker.data.index.columns import numbers

EXAMPLES = 5
MOST_BITS = 3
TELLING_BITS = 6
"""A look with fewer bits set, or fewer unset, belongs to a plain surface."""
PARTS, PART_BITS = 4, 16
MOST_NEIGHBOURS = 4096
"""An image is compared with at most this many others that have the same part."""
_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)

Looks = NDArray[np.uint64]
_NAMES = ("split", "path", "other_split", "other_path")
PAIR = pa.schema([*((name, pa.string()) for name in _NAMES), ("bits", pa.int8())])


def duplicates(tables: dict[str, pa.Table]) -> dict[str, Any]:
    """Images with exactly the same pixels: inside a split, between train and the others, and
    under several labels."""
    report: dict[str, Any] = {"within": {}, "across": {}, "examples": {}}
    hashes = {split: pixel_hashes(table) for split, table in tables.items()}
    for split, keys in hashes.items():
        if repeats := len(keys) - len(np.unique(keys)):
            report["within"][split] = repeats
    for split in [name for name in hashes if name != "train"]:
        shared = np.flatnonzero(np.isin(hashes[split], hashes["train"]))
        if not len(shared):
            continue
        report["across"][split] = len(shared)
        pairs = report["examples"][split] = []
        for row in shared[:EXAMPLES]:
            twin = int(np.flatnonzero(hashes["train"] == hashes[split][row])[0])
            paths = (tables[split].column("path"), tables["train"].column("path"))
            pairs.append([paths[0][int(row)].as_py(), paths[1][twin].as_py()])
    if conflicts := conflicting_labels(pa.concat_tables(tables.values())):
        report["conflicts"] = conflicts
    return report


def with_repeated(tables: dict[str, pa.Table], repeated: NDArray[np.void]) -> dict[str, pa.Table]:
    """The rows whose pixel hash occurs more than once, in their order. `duplicates` finds the same
    in them as in all rows: it counts and names no image that is there only once."""
    return {
        split: table.filter(pa.array(np.isin(pixel_hashes(table), repeated)))
        for split, table in tables.items()
    }


def conflicting_labels(table: pa.Table) -> dict[str, Any]:
    """Images with the same pixels under several labels: how many there are, and pairs of rows
    (path, label) for some; empty where there are none."""
    _, groups = np.unique(pixel_hashes(table), return_inverse=True)
    labels = numbers(table, "label")
    order = np.lexsort((labels, groups))
    same_image = groups[order[1:]] == groups[order[:-1]]
    differ = np.flatnonzero(same_image & (labels[order[1:]] != labels[order[:-1]]))
    if not len(differ):
        return {}
    paths = table.column("path")
    pairs = [(int(order[at]), int(order[at + 1])) for at in differ[:EXAMPLES].tolist()]
    return {
        "images": len(np.unique(groups[order[differ]])),
        "pairs": len(differ),
        "examples": [[[paths[row].as_py(), int(labels[row])] for row in pair] for pair in pairs],
    }


def pixel_hashes(table: pa.Table) -> NDArray[np.void]:
    """The pixel hashes as one array of 16 bytes each, without a Python object for each image."""
    column = table.column("pixels").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    raw = np.frombuffer(column.buffers()[1], dtype="V16") if len(column) else np.empty(0, "V16")
    return raw[column.offset : column.offset + len(column)]


def near_duplicates(tables: dict[str, pa.Table]) -> pa.Table:
    """Pairs that look alike but differ in some pixel, the most similar first."""
    together = pa.concat_tables(tables.values())
    splits = np.repeat(list(tables), [table.num_rows for table in tables.values()])
    hashes = pixel_hashes(together)
    one, two, bits = alike(numbers(together, "look"))
    differ = hashes[one] != hashes[two]
    one, two, bits = one[differ], two[differ], bits[differ]
    order = np.lexsort((two, one, bits))
    one, two = one[order], two[order]
    paths = together.column("path")
    columns = [splits[one], paths.take(one), splits[two], paths.take(two), bits[order]]
    return pa.table(
        [pa.chunked_array([c]) if isinstance(c, np.ndarray) else c for c in columns], PAIR.names
    ).cast(PAIR)


def alike(looks: Looks) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Rows of the pairs whose looks differ in at most MOST_BITS bits, and how many bits differ.
    Of equal looks only the first is paired with the others: 1,000 frames make 999 pairs."""
    counts = ones(looks)
    telling = np.flatnonzero((counts >= TELLING_BITS) & (counts <= 64 - TELLING_BITS))
    distinct, first, group = np.unique(looks[telling], return_index=True, return_inverse=True)
    first = telling[first]
    repeats = np.flatnonzero(first[group] != telling)
    same = [first[group[repeats]], telling[repeats], np.zeros_like(repeats)]
    pairs: list[NDArray[np.int64]] = [np.stack(same, axis=1)]
    for part in range(PARTS):
        keys = (distinct >> np.uint64(part * PART_BITS)) & np.uint64(0xFFFF)
        order = np.argsort(keys, kind="stable")
        for distance in range(1, MOST_NEIGHBOURS):
            near = np.flatnonzero(keys[order[:-distance]] == keys[order[distance:]])
            if not len(near):
                break
            one, two = order[near], order[near + distance]
            bits = ones(distinct[one] ^ distinct[two])
            close = bits <= MOST_BITS
            one, two = first[one[close]], first[two[close]]
            columns = [np.minimum(one, two), np.maximum(one, two), bits[close].astype(np.int64)]
            pairs.append(np.stack(columns, axis=1))
    unique = np.unique(np.concatenate(pairs), axis=0)
    return unique[:, 0], unique[:, 1], unique[:, 2].astype(np.uint8)


def ones(values: Looks) -> NDArray[np.uint8]:
    as_bytes = np.ascontiguousarray(values).view(np.uint8).reshape(-1, 8)
    counts: NDArray[np.uint8] = _ONES[as_bytes].sum(axis=1, dtype=np.uint8)
    return counts
