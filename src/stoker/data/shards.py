"""The shards of a split: files in a folder, or objects of a store that come through a cache.

Invariants: shards are opened read-only and never written. They are read, not mapped into memory: a
disk that fails raises an error that names the file, instead of a signal.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from stoker.data.index.shard_table import ShardList
from stoker.errors import StokerError
from stoker.faults import reach
from stoker.host.page_cache import drop
from stoker.text import say

SHARDS_OPEN = 400
"""Below the usual limit of 1024 open files, and more than the readers of a loader need."""
CHANGED = "it was changed after packing: remove the set, then pack again with 'stoker pack'"

Upcoming = Callable[[], Iterable[int]]
"""Returns the numbers of the shards that are needed next, the soonest first; some repeatedly."""


def print_note(message: str) -> None:
    """Tell the user of trouble with a store that goes on."""
    say(f"note: {message}", stream=sys.stderr)


class OpenShard:
    """A shard that is open for reading; closed when no thread refers to it any more."""

    handle = -1

    def __init__(self, handle: int, owner: object = None) -> None:
        self.handle, self._owner = handle, owner
        self.size = os.fstat(handle).st_size

    @classmethod
    def at(cls, path: Path) -> OpenShard:
        return cls(os.open(path, os.O_RDONLY))

    def read(self, into: memoryview, offset: int) -> int:
        reach("read")
        return os.preadv(self.handle, [into], offset)

    def __del__(self) -> None:
        if self.handle >= 0 and self._owner is None:
            os.close(self.handle)


class Shards(Protocol):
    """The shards of one split, by number."""

    @property
    def is_local(self) -> bool:
        """Whether all shards are files of this machine."""

    def tell(self, report: Callable[[str], None]) -> None:
        """Have messages about trouble with the store passed to `report`, by any thread."""

    def place(self, number: int) -> str:
        """Where a shard is, for messages."""

    def open(self, number: int, *, whole: bool = False) -> OpenShard | None:
        """A shard, open for reading; None where parts of it are better had by `read`. `whole`: all
        of it is needed. Raises StokerError where it is missing or of another size."""

    def read(self, number: int, into: memoryview, offset: int) -> int:
        """Fill `into` from a shard that is not open; returns the bytes. Raises StokerError."""

    def gather(self, parts: Sequence[tuple[int, int, int]]) -> None:
        """Have parts (number, offset, length) at hand that this thread is about to read."""

    def follow(self, upcoming: Upcoming) -> None:
        """Take note of what is needed next: fetch it ahead, and release the rest."""

    def files(self, numbers: Iterable[int]) -> list[Path]:
        """The files of this machine that hold some shards; those that are not here are left out."""

    def forget(self, numbers: Iterable[int]) -> None:
        """Have some shards read from where they are stored: from the disk, or from the store."""

    def renew(self, number: int) -> bool:
        """Whether a damaged image may be intact when it is read again: a copy of a shard that is
        damaged is replaced. Raises StokerError where that fails."""

    def close(self) -> None:
        """End what runs in the background."""


class FolderShards:
    """Shards in a folder of this machine."""

    is_local = True

    def __init__(self, folder: Path, shards: ShardList) -> None:
        self._folder, self._shards = folder, shards
        self._opened: OrderedDict[int, OpenShard] = OrderedDict()
        self._lock = threading.Lock()

    def tell(self, report: Callable[[str], None]) -> None:
        """There is no store."""

    def place(self, number: int) -> str:
        return str(self._folder / self._shards[number]["name"])

    def open(self, number: int, *, whole: bool = False) -> OpenShard:
        with self._lock:
            if number in self._opened:
                self._opened.move_to_end(number)
                return self._opened[number]
            path = self.place(number)
            try:
                opened = OpenShard.at(Path(path))
            except OSError as error:
                raise StokerError(f"cannot read shard {path}: {error}") from error
            if opened.size != self._shards[number]["bytes"]:
                raise StokerError(
                    f"shard {path} has {opened.size} bytes, not {self._shards[number]['bytes']}: "
                    f"{CHANGED}"
                )
            self._opened[number] = opened
            if len(self._opened) > SHARDS_OPEN:
                self._opened.popitem(last=False)
            return opened

    def read(self, number: int, into: memoryview, offset: int) -> int:
        return self.open(number).read(into, offset)

    def gather(self, parts: Sequence[tuple[int, int, int]]) -> None:
        """The page cache reads ahead."""

    def follow(self, upcoming: Upcoming) -> None:
        """Nothing is fetched."""

    def files(self, numbers: Iterable[int]) -> list[Path]:
        return [Path(self.place(number)) for number in numbers]

    def forget(self, numbers: Iterable[int]) -> None:
        drop(self.files(numbers))

    def renew(self, number: int) -> bool:
        return False

    def close(self) -> None:
        """Nothing runs in the background."""
