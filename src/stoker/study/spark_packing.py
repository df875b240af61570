"""Packing on a Spark cluster: its workers write the shards and count the parts, this machine lists
the source and finishes the set.

Invariants: the tasks, and so the bytes, are those of a pack on this machine. A worker writes only
where it sees what this machine wrote into the target, and it rejects files as missing only where
this machine misses them too. A session begins with the first task: a set that is packed already
needs none.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stoker.data.index.columns import numbers
from stoker.data.packing.duplicates import pixel_hashes
from stoker.data.packing.shard import (
    Files,
    PartCounts,
    Parts,
    ShardReport,
    ShardTask,
    write_shard,
)
from stoker.data.packing.staging import Chunk, Staged
from stoker.errors import BadRequest, StokerError
from stoker.fleet.spark.session import OWN_SETTINGS, SparkCluster
from stoker.stores.location import is_location
from stoker.text import shown

COUNT_ROWS = 20_000_000
"""Rows of a set that are counted by the workers; this machine counts fewer as quickly."""
COUNT_SETTING = f"{OWN_SETTINGS}countRows"
"""The setting that changes this number."""
PARTS_A_TASK = 64
ROWS_A_GROUP, LEAST_GROUPS = 2_000_000, 8


@dataclass(frozen=True)
class Unseen:
    """A task that a worker did not begin, because it does not see its files."""

    host: str
    example: str


@dataclass(frozen=True)
class SparkPlace:
    """The workers of a Spark session: a TaskPlace."""

    cluster: SparkCluster
    target: Path
    count_rows: int = COUNT_ROWS

    @classmethod
    def of(cls, cluster: SparkCluster, target: Path) -> SparkPlace:
        """With the number of rows that the session's settings say. Raises BadRequest."""
        text = cluster.settings.get(COUNT_SETTING, str(COUNT_ROWS))
        if not (text.isascii() and text.isdecimal() and len(text) < 18):
            setting = f"--spark-conf {COUNT_SETTING}"
            raise BadRequest(f"{setting} must be a whole number, not '{shown(text)}'")
        return cls(cluster, target, int(text))

    def write(self, tasks: Iterator[ShardTask]) -> Generator[ShardReport]:
        first = next(tasks, None)
        if first is None:
            return
        everything = map(resolved, chain([first], tasks))
        if is_location(first.out):
            yield from self._reports(write_seen, everything)
            return
        with landmark(self.target.absolute()) as mark:
            yield from self._reports(partial(write_there, mark), everything)

    def _reports(
        self, function: Callable[[ShardTask], ShardReport | Unseen], tasks: Iterator[ShardTask]
    ) -> Generator[ShardReport]:
        for task, result in self.cluster.tasks.run(function, tasks, data_bytes):
            yield seen_here(task, result) if isinstance(result, Unseen) else result

    def count(self, parts: Parts, rows: int, classes: int) -> PartCounts | None:
        if rows < self.count_rows or not rows:
            return None
        named = [(split, str(path.absolute())) for split, paths in parts.items() for path in paths]
        starts = range(0, len(named), PARTS_A_TASK)
        tasks = [named[start : start + PARTS_A_TASK] for start in starts]
        groups = max(rows // ROWS_A_GROUP, LEAST_GROUPS)
        function = partial(part_pairs, classes, groups)
        results = self.cluster.tasks.grouped(function, tasks, reduce_counts, groups)
        empty = {split: np.zeros(classes, np.int64) for split in parts}
        labels = {key: value for key, value in results if isinstance(key, str)}
        repeated = [value for key, value in results if not isinstance(key, str)]
        hashes = np.frombuffer(b"".join(repeated), "V16")
        return PartCounts({**empty, **labels}, hashes)


def resolved(task: ShardTask) -> ShardTask:
    """A task whose target and source any machine finds: the one place that says where they are."""
    inputs = task.inputs
    if isinstance(inputs, Files):
        inputs = replace(inputs, root=str(Path(inputs.root).absolute()))
    elif isinstance(inputs, Staged):
        inputs = replace(inputs, folder=str(Path(inputs.folder).absolute()))
    out = task.out if is_location(task.out) else str(Path(task.out).absolute())
    return replace(task, out=out, inputs=inputs)


def data_bytes(task: ShardTask) -> int:
    """The bytes of images that travel with a task."""
    inputs = task.inputs
    return sum(len(item.data or b"") for item in inputs.items) if isinstance(inputs, Chunk) else 0


@contextmanager
def landmark(target: Path) -> Iterator[str]:
    """A new file in the target, by which a worker knows the folder; its path."""
    path = target / ".parts" / f"seen-{secrets.token_hex(8)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    try:
        yield str(path)
    finally:
        with suppress(OSError):
            path.unlink()


def write_there(mark: str, task: ShardTask) -> ShardReport | Unseen:
    """Write a shard into a folder, on a worker: it sees the file `mark` there if it shares the
    folder. Raises StokerError where it does not."""
    if not Path(mark).exists():
        target = Path(mark).parent.parent
        if (target / "dataset.json").exists():
            return ShardReport(0, 0, 0)  # a second try, too late: the set is finished
        raise StokerError(
            f"{shown(str(target))} on {shown(socket.gethostname())} is not the folder of this "
            "machine: name a target on a disk that all workers share"
        )
    return write_seen(task)


def write_seen(task: ShardTask) -> ShardReport | Unseen:
    """Write a shard on a worker, if it sees the task's files."""
    inputs = task.inputs
    if isinstance(inputs, Files) and not any_there(inputs):
        return Unseen(socket.gethostname(), os.path.join(inputs.root, inputs.paths[0]))  # noqa: PTH118
    return write_shard(task)


def any_there(files: Files) -> bool:
    """Whether this machine sees one of these files at least."""
    return any(os.path.lexists(os.path.join(files.root, path)) for path in files.paths)  # noqa: PTH118


def seen_here(task: ShardTask, unseen: Unseen) -> ShardReport:
    """The shard of a task whose files no machine sees, written here. Raises StokerError where this
    machine does see them."""
    if isinstance(task.inputs, Files) and any_there(task.inputs):
        raise StokerError(
            f"{shown(unseen.host)} does not see {shown(unseen.example)}: the images must be on a "
            "disk that all workers share, under the same path"
        )
    return write_shard(task)


NamedParts = list[tuple[str, str]]
"""Split and path of some parts."""
PairKey = str | int
"""A split, whose labels are counted, or a group of pixel hashes."""


def part_pairs(classes: int, groups: int, named: NamedParts) -> list[tuple[PairKey, bytes]]:
    """The counts of labels by split, and the pixel hashes in groups: equal ones in one group."""
    pairs: list[tuple[PairKey, bytes]] = []
    blocks: dict[int, list[bytes]] = {}
    for split, path in named:
        table = pq.read_table(path, columns=["label", "pixels", "reason"])
        table = table.filter(table.column("reason").is_null())
        labels = np.bincount(numbers(table, "label"), minlength=classes).astype(np.int64)
        pairs.append((split, labels.tobytes()))
        hashes = pixel_hashes(table)
        own_group = np.frombuffer(hashes.tobytes(), np.uint64)[::2] % np.uint64(groups)
        for group in np.unique(own_group).tolist():
            blocks.setdefault(group, []).append(hashes[own_group == group].tobytes())
    return [*pairs, *((group, b"".join(some)) for group, some in blocks.items())]


def reduce_counts(key: PairKey, values: list[bytes]) -> tuple[PairKey, Any]:
    """The sum of the counts of a split, or the hashes of a group that occur more than once."""
    if isinstance(key, str):
        counts: NDArray[np.int64] = np.sum([np.frombuffer(v, np.int64) for v in values], axis=0)
        return key, counts
    hashes, times = np.unique(np.frombuffer(b"".join(values), "V16"), return_counts=True)
    return key, hashes[times > 1].tobytes()
