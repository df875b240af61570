"""The files of a grid or of a lock, as few operations as leases need, so that a simulation can
stand in.

Invariants: a name is created by one process only, however many try, also on a network disk: a
complete file gets its name by a link, which fails where the name exists. Names are relative to the
folder, with `/` between folders.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from stoker.commit import UNABLE, sync
from stoker.host.plain_file import NotPlain, open_plain


class GridFiles(Protocol):
    """Where a grid is kept."""

    def create(self, name: str, data: bytes, *, durable: bool = False) -> bool:
        """Write a new file, complete. Returns False, and writes nothing, where the name exists.
        A durable file is on the disk when this returns."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Write a file, complete, over an earlier one."""
        ...

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None where there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none where it does not exist."""
        ...


def parsed(data: bytes | None) -> Any:
    """What some bytes hold as JSON; None where they hold none: others may have written them."""
    try:
        return json.loads(data or b"")
    except (ValueError, RecursionError):
        return None


class GridClock(Protocol):
    """Time, as a lease needs it."""

    def now(self) -> float:
        """Seconds on a clock of this machine that never goes back, and runs while it sleeps."""
        ...

    def sleep(self, seconds: float) -> None: ...


class DiskFiles:
    """GridFiles below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.suffix = f"{secrets.token_hex(6)}.tmp"  # a number of a process is not unique enough

    def create(self, name: str, data: bytes, *, durable: bool = False) -> bool:
        path = self.root / name
        draft = self._draft(path, data)
        try:
            if durable:
                sync(draft)
            os.link(draft, path)
            if durable:
                sync(path.parent)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in UNABLE:
                raise
            return self._create_without_links(path, data)
        finally:
            draft.unlink(missing_ok=True)
        return True

    def _create_without_links(self, path: Path, data: bytes) -> bool:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return True

    def _draft(self, path: Path, data: bytes) -> Path:
        draft = path.with_name(f".{path.name}.{self.suffix}")
        try:
            draft.write_bytes(data)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(data)
        return draft

    def replace(self, name: str, data: bytes) -> None:
        path = self.root / name
        self._draft(path, data).replace(path)

    def read(self, name: str) -> bytes | None:
        with (
            suppress(FileNotFoundError, NotADirectoryError, NotPlain),
            open_plain(self.root / name) as file,
        ):
            return file.read()
        return None

    def names(self, folder: str) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return [name for name in os.listdir(self.root / folder) if not name.startswith(".")]  # noqa: PTH208
        return []


class SystemClock:
    def now(self) -> float:
        boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime(boot)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
