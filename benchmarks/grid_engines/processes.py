"""The processes of an engine and of the cells that it runs, as the kernel lists them.

Invariants: everything that an engine starts inherits a variable with a mark, daemons and jobs of
SLURM too. A process is of a cell if it runs `grid_engines.cell` or the program of a cell of a
study; all others with the mark are the engine's. Memory is proportional (PSS): shared pages count
once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "STOKER_ENGINE_TRIAL"


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    words: tuple[str, ...]
    variables: dict[str, str]

    @property
    def cell(self) -> str | None:
        """The folder of the cell that this process is the command of."""
        if "grid_engines.cell" in self.words:
            return self.words[self.words.index("--run") + 1]
        if "stoker.study.cell" in self.words:
            return self.variables.get("STOKER_CELL")
        return None

    def memory(self) -> int:
        """Bytes of its own and its part of shared pages; 0 where it has ended."""
        try:
            lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            return 0
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)

    def kill(self) -> bool:
        """Kill it as the kernel does when memory runs out. Returns whether it was there."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


def marked(mark: str) -> list[Process]:
    """The processes that run and have a mark."""
    return [process for process in every() if process.variables.get(MARK) == mark]


def every() -> Iterator[Process]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue  # it has just ended, or belongs to another user
            pairs = (text.partition("=")[::2] for text in variables)
            yield Process(int(folder.name), int(stat[1]), tuple(words[:-1]), dict(pairs))


def end_all(mark: str) -> None:
    """Kill whatever is left."""
    while left := marked(mark):
        for process in left:
            process.kill()
