"""Images that are in a set more than once: pixel for pixel, and, on request, nearly.

Invariants: pure functions of the index tables. Every pair of images whose 64 bits of look differ in
at most `MOST_BITS` is found: such a pair agrees in one of four parts of the bits, so only images
that agree in a part are compared. Looks that say little (plain surfaces) are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stoker.data.columns import numbers

EXAMPLES = 5
MOST_BITS = 3
TELLING_BITS = 6
"""A look with fewer bits set, or fewer unset, is that of a plain surface."""
PARTS, PART_BITS = 4, 16
NEAREST = 4096
"""How many neighbours with the same part an image is compared with, at most."""
_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)

Looks = NDArray[np.uint64]
PAIR = pa.schema(
    [
        ("split", pa.string()),
        ("path", pa.string()),
        ("other_split", pa.string()),
        ("other_path", pa.string()),
        ("bits", pa.int8()),
    ]
)


def duplicates(tables: dict[str, pa.Table]) -> dict[str, Any]:
    """Images with exactly the same pixels: inside a split, and between train and the others."""
    found: dict[str, Any] = {"within": {}, "across": {}, "examples": {}}
    hashes = {split: pixel_hashes(table) for split, table in tables.items()}
    for split, keys in hashes.items():
        again = len(keys) - len(np.unique(keys))
        if again:
            found["within"][split] = int(again)
    for split in [name for name in hashes if name != "train"]:
        shared = np.flatnonzero(np.isin(hashes[split], hashes["train"]))
        if not len(shared):
            continue
        found["across"][split] = len(shared)
        pairs = found["examples"][split] = []
        for row in shared[:EXAMPLES]:
            twin = int(np.flatnonzero(hashes["train"] == hashes[split][row])[0])
            paths = (tables[split].column("path"), tables["train"].column("path"))
            pairs.append([paths[0][int(row)].as_py(), paths[1][twin].as_py()])
    return found


def pixel_hashes(table: pa.Table) -> NDArray[np.void]:
    """The hashes as one array of 16 bytes each, without an object for every image."""
    column = table.column("pixels").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    raw = np.frombuffer(column.buffers()[1], dtype="V16") if len(column) else np.empty(0, "V16")
    return raw[column.offset : column.offset + len(column)]


def near_duplicates(tables: dict[str, pa.Table]) -> pa.Table:
    """Pairs that look alike but are not the same pixel for pixel, the likest first."""
    together = pa.concat_tables(tables.values())
    splits = np.repeat(list(tables), [table.num_rows for table in tables.values()])
    looks = numbers(together, "look")
    hashes = pixel_hashes(together)
    one, two, bits = alike(looks)
    other = hashes[one] != hashes[two]
    one, two, bits = one[other], two[other], bits[other]
    order = np.lexsort((two, one, bits))
    one, two = one[order], two[order]
    paths = together.column("path")
    columns = [splits[one], paths.take(one), splits[two], paths.take(two), bits[order]]
    return pa.table(
        [pa.chunked_array([c]) if isinstance(c, np.ndarray) else c for c in columns], PAIR.names
    ).cast(PAIR)


def alike(looks: Looks) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Places of pairs whose looks differ in few bits, and in how many. Of images with the very
    same look each is paired with the first: a thousand frames of one scene are a thousand pairs."""
    counts = ones(looks)
    telling = np.flatnonzero((counts >= TELLING_BITS) & (counts <= 64 - TELLING_BITS))
    distinct, first, which = np.unique(looks[telling], return_index=True, return_inverse=True)
    first = telling[first]
    again = np.flatnonzero(first[which] != telling)
    same = [first[which[again]], telling[again], np.zeros_like(again)]
    pairs: list[NDArray[np.int64]] = [np.stack(same, axis=1)]
    for part in range(PARTS):
        keys = (distinct >> np.uint64(part * PART_BITS)) & np.uint64(0xFFFF)
        order = np.argsort(keys, kind="stable")
        for apart in range(1, NEAREST):
            near = np.flatnonzero(keys[order[:-apart]] == keys[order[apart:]])
            if not len(near):
                break
            one, two = order[near], order[near + apart]
            bits = ones(distinct[one] ^ distinct[two])
            close = bits <= MOST_BITS
            one, two = first[one[close]], first[two[close]]
            found = [np.minimum(one, two), np.maximum(one, two), bits[close].astype(np.int64)]
            pairs.append(np.stack(found, axis=1))
    found_all = np.unique(np.concatenate(pairs), axis=0)
    return found_all[:, 0], found_all[:, 1], found_all[:, 2].astype(np.uint8)


def ones(values: Looks) -> NDArray[np.uint8]:
    """How many bits of each number are set."""
    as_bytes = np.ascontiguousarray(values).view(np.uint8).reshape(-1, 8)
    counts: NDArray[np.uint8] = _ONES[as_bytes].sum(axis=1, dtype=np.uint8)
    return counts
