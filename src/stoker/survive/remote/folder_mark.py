"""What a working folder was used for last: files in it that stay on its machine.

    .mirror     {"run_id": "9f86d081884c7d65", "known": 3, "attempt": 3, "alone": true,
                 "sent": false}
    .holder     the lease that a process held here, and since which start of the machine

Invariants: a folder is ahead of the store only where the newest attempt of the run was made here.
Then what it holds is kept, and uploaded; else the store is right. What is in these files is a hint
that is compared with the head: a damaged one is as good as none.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from stoker.commit import remove, write_bytes, write_json
from stoker.survive.manifest import MARKER, names_in
from stoker.survive.remote.records import MOST_ATTEMPTS, Content, is_count

MARK, HOLDER = ".mirror", ".holder"


@dataclass(frozen=True)
class FolderMark:
    """The last use of a folder."""

    run_id: str = ""
    known: int = 0
    """Up to this attempt the folder agrees with the store; a later one was never recorded."""
    attempt: int = 0
    """The newest attempt that rank 0 made here; 0: none."""
    alone: bool = False
    """Whether all of its ranks were on this machine."""
    sent: bool = True
    """Whether everything of it is in the store."""

    def is_newest(self, content: Content) -> bool:
        """Whether the newest attempt of the run was made in this folder."""
        is_same = self.run_id == content.run_id
        return is_same and 0 < self.attempt == content.attempt

    def is_other(self, content: Content) -> bool:
        """Whether the folder holds another run than the one that is in the store."""
        return self.run_id not in ("", content.run_id)


def read_mark(folder: Path) -> FolderMark:
    """The mark of a folder; one that says nothing where there is none."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        mark = FolderMark(**json.loads((folder / MARK).read_bytes()))
        flags = isinstance(mark.alone, bool) and isinstance(mark.sent, bool)
        counts = all(is_count(number, MOST_ATTEMPTS) for number in (mark.known, mark.attempt))
        if flags and counts and isinstance(mark.run_id, str):
            return mark
    return FolderMark()


def write_mark(folder: Path, mark: FolderMark) -> None:
    write_json(folder / MARK, asdict(mark))


def boot_id() -> str:
    """Identifies this machine since it was started; random where the kernel has no such id."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return secrets.token_hex(8)


def note_holder(folder: Path, holder: str) -> None:
    """Note the lease that this process holds."""
    write_bytes(folder / HOLDER, f"{holder} {boot_id()}".encode())


def earlier_holder(folder: Path) -> str:
    """The lease that a process on this machine held last, in this folder; empty where there was
    none since the machine started. The caller has the lock of the folder, so that process has
    ended."""
    with suppress(OSError, ValueError):
        holder, boot = (folder / HOLDER).read_text().split()
        return holder if boot == boot_id() else ""
    return ""


def drop_unrecorded(folder: Path) -> None:
    """Remove attempts that were never recorded: another machine may have used their numbers."""
    known = read_mark(folder).known
    for path in list((folder / "attempts").glob("*")):
        if path.name.isdecimal() and int(path.name) > known:
            remove(path)


def drop_foreign(folder: Path, content: Content, *, ahead: bool = False) -> None:
    """Remove checkpoints that the store does not have, unless the folder is `ahead`."""
    for name in [] if ahead else names_in(folder / "checkpoints"):
        if name not in content.checkpoints:
            remove(folder / "checkpoints" / name / MARKER)
            remove(folder / "checkpoints" / name)
