"""A worker: takes cells that are ready, runs their commands, commits their results.

Invariants: a cell runs only while this worker holds its lease and its parents have results. A
command that ends with 0 and has written a result is done; one that ends with 75 was stopped, and
goes on where it was when it runs again. A worker that is told to stop passes the signal on, and
ends with 75 when its command has. If the worker dies, the kernel kills its command.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from stoker.commit import open_at_end, write_bytes
from stoker.errors import FINISHED, INTERRUPTED
from stoker.fleet.grid.cell import Cell, Plan
from stoker.fleet.grid.directory import Grid
from stoker.host.signals import begin_helper
from stoker.locks.lease import Lease, Leases
from stoker.safe_path import SAFE

CELL = "STOKER_CELL"
"""The variable with the folder of the cell that a command runs for."""
POLL_S, WAIT_S = 0.02, 1.0
"""Seconds between two looks at a command, and between two looks for a cell that is ready."""
Stamp = tuple[int, int, int] | None
LOG_TAIL = 2000
"""Characters of a command's output that the record of a failure keeps."""


class Job(Protocol):
    """A command that runs."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        ...

    def stop(self, number: signal.Signals) -> None: ...

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""
        ...


class ProcessJob:
    """A command as a process of its own session, which dies with this one."""

    def __init__(self, command: list[str], variables: Mapping[str, str], log: Path) -> None:
        with open_at_end(log) as output:
            self._process = subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(begin_helper, os.getpid()),
            )

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass
class Worker:
    """Runs cells of a plan until none is left, or until it is told to stop."""

    grid: Grid
    plan: Plan
    leases: Leases
    stop: Callable[[], signal.Signals | None]
    """Returns the signal that asked this worker to stop; None while it may go on."""
    say: Callable[[str], None] = lambda line: None
    most: int | None = None
    """So many cells at most."""
    start: Callable[[list[str], Mapping[str, str], Path], Job] = ProcessJob
    _sources: dict[str, str] = field(default_factory=dict)

    def run(self) -> int:
        """Returns 0 where no cell is left that this worker could run, 75 where it was stopped."""
        left, ran = list(self.plan.cells), 0
        while left:
            progress = False
            for name in left:
                if self.stop():
                    return INTERRUPTED
                if ran == self.most:
                    return FINISHED
                has_run = self._try(self.plan.cells[name])
                progress = progress or has_run
                ran += has_run
            failed = [n for n in left if self.grid.failures(n)]
            over = {*failed, *self.plan.blocked_by(failed)}
            left = [n for n in left if n not in over and not self.grid.is_done(n)]
            if left and not progress:
                self.leases.clock.sleep(WAIT_S)
        return FINISHED

    def _try(self, cell: Cell) -> bool:
        """Run a cell if it is ready and free; returns whether it ran."""
        if self._is_over(cell) or not all(self.grid.is_done(parent) for parent in cell.parents):
            return False
        lease = self.leases.take(cell.id)
        if lease is None:
            return False
        if self._is_over(cell):  # another worker ran it just before
            self.leases.end(lease, {"outcome": "late", "code": FINISHED})
            return False
        self._run(cell, lease)
        return True

    def _is_over(self, cell: Cell) -> bool:
        return self.grid.is_done(cell.id) or bool(self.grid.failures(cell.id))

    def _run(self, cell: Cell, lease: Lease) -> None:
        began = time.time()
        path = self.grid.cell_path(cell.id)
        write_bytes(path / "cell.json", json.dumps(cell.as_json(), indent=1).encode())
        (path / "work").mkdir(exist_ok=True)
        draft, log = path / "draft.json", path / "log.txt"
        # Not removed: where the lease is lost, it may be the one of a worker that came later.
        before = stamp_of(draft)
        offset = log.stat().st_size if log.exists() else 0
        if not self.leases.holds(lease):  # the disk may have stalled since it was taken
            self.say(f"{cell.label}: another worker has it")
            return
        self.say(f"{cell.label}: started" + (f" (lease {lease.number})" * (lease.number > 1)))
        job = self.start(self._words(cell), self._variables(cell), log)
        code = self._wait(job, lease)
        record: dict[str, Any] = {
            "outcome": outcome_of(code, asked=self.stop() is not None),
            "code": code,
            "worker": self.leases.holder.name,
            "began": began,
            "seconds": time.time() - began,
        }
        if not self.leases.holds(lease):
            self.say(f"{cell.label}: another worker has it")
            return
        if code == FINISHED:
            record["outcome"] = self._commit(lease, draft, before)
        if record["outcome"] == "failed":
            with log.open("rb") as file:
                file.seek(offset)
                record["output"] = file.read().decode(errors="replace")[-LOG_TAIL:]
            if code == FINISHED:
                record["output"] += f"\nit wrote no result into {CELL}/draft.json\n"
        self.leases.end(lease, record)
        self.say(f"{cell.label}: {record['outcome']}")

    def _commit(self, lease: Lease, draft: Path, before: Stamp) -> str:
        """The outcome: a command that wrote no result has failed."""
        if stamp_of(draft) in (None, before):
            return "failed"
        try:
            data = draft.read_bytes()
            json.loads(data)
        except (IsADirectoryError, PermissionError, ValueError, RecursionError):
            return "failed"
        return "finished" if self.leases.commit(lease, data) else "late"

    def _wait(self, job: Job, lease: Lease) -> int | None:
        """The exit code of a command. It is killed where the lease is lost."""
        signalled = False
        while (code := job.poll()) is None:
            if not self.leases.beat(lease):
                job.kill()
                return None
            if not signalled and (number := self.stop()):
                job.stop(number)
                signalled = True
            self.leases.clock.sleep(POLL_S)
        return code

    def _words(self, cell: Cell) -> list[str]:
        places = {"{python}": sys.executable, "{cell}": str(self.grid.cell_path(cell.id))}
        return [places.get(word, word) for word in cell.command]

    def _variables(self, cell: Cell) -> dict[str, str]:
        variables = {**os.environ, CELL: str(self.grid.cell_path(cell.id).absolute()), SAFE: "1"}
        if cell.sources:
            if cell.sources not in self._sources:
                self._sources[cell.sources] = str(self.grid.sources(cell.sources).absolute())
            # Only sources are checked: none of their compiled forms is written or read there.
            variables["PYTHONDONTWRITEBYTECODE"] = "1"
            paths = [self._sources[cell.sources], os.environ.get("PYTHONPATH", "")]
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        return variables


def stamp_of(path: Path) -> Stamp:
    """What differs once a file is written again; None where there is none."""
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None


def outcome_of(code: int | None, *, asked: bool) -> str:
    """What an exit code means. A command that a signal ended is tried again, and so is one that
    stopped without being asked to, but not for ever."""
    if code == FINISHED:
        return "finished"
    if code == INTERRUPTED:
        return "interrupted" if asked else "lost"
    return "lost" if code is None or code < 0 else "failed"
