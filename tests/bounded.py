"""A command run as a user runs it, with its memory watched and its surroundings compared."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LOOK_S = 0.02
LONGEST_S = 500


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str
    peak_mib: int
    """Highest sum of the resident memory of all its processes, as seen now and then."""
    seconds: float


def tree(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def resident_kib(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4
    except (OSError, IndexError):
        return 0


def stoker(*words: str | bytes | Path, cwd: Path, stdin: IO[bytes] | None = None) -> Ended:
    """Run `stoker WORDS`; waits for so long at most as no command takes."""
    began = time.monotonic()
    peak_kib, done = 0, threading.Event()
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", *map(os.fspath, words)],
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
    )

    def look() -> None:
        nonlocal peak_kib
        while not done.wait(LOOK_S):
            peak_kib = max(peak_kib, sum(map(resident_kib, tree(process.pid))))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        out, err = process.communicate(timeout=LONGEST_S)
    finally:
        process.kill()
        done.set()
        watcher.join()
    seconds = time.monotonic() - began
    said = (text.decode("utf-8", "backslashreplace") for text in (out, err))
    return Ended(process.returncode, *said, peak_kib >> 10, seconds)


def contents(root: Path, but: Path) -> dict[str, str]:
    """Everything below a folder except one thing in it: kind, target or hash of each entry."""
    found = {}
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if Path(folder, name) != but]
        for name in names + files:
            path = Path(folder, name)
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
            elif stat.S_ISLNK(mode):
                found[str(path)] = f"-> {path.readlink()}"
            else:
                found[str(path)] = str(stat.S_IFMT(mode))
    return found
