"""Peers as processes, and their alternating rounds.

Invariants: round n of every peer ends before round n + 1 of any begins, so that all run under the
same load of the machine. A peer that fails is left out from then on; its row says why. All started
processes and their workers are ended, whatever happens.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compare.environments import PEERS, TABLE, CannotInstall, interpreter
from peers.protocol import Job

PREPARE_S = 600
ROUND_S = 300


class Failed(Exception):
    """The reason why a peer did not answer, in one line."""


@dataclass
class Row:
    """The results of one peer."""

    name: str
    rounds: list[dict[str, float]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    failed: str = ""

    @property
    def title(self) -> str:
        return str(TABLE["peers"][self.name]["title"])


class Process:
    """One peer, started and prepared."""

    def __init__(self, python: Path, name: str, job: Job, log: Path) -> None:
        script = TABLE["peers"][name].get("script", name)
        paths = [str(PEERS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        # Locks and caches that a package leaves behind are removed with our temporary folder.
        temporary = log.with_suffix(".tmp")
        temporary.mkdir()
        variables = {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONWARNINGS": "ignore",
            "TMPDIR": str(temporary),
        }
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [str(python), "-P", "-m", f"peers.{script}", json.dumps(asdict(job))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | variables,
                start_new_session=True,
            )

    def answer(self, patience_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], patience_s)[0]:
            raise Failed(f"no answer within {patience_s} s")
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            lines = self.log.read_text("utf-8", "replace").strip().splitlines()
            raise Failed((lines or [f"ended with code {self.process.returncode}"])[-1])
        fields: dict[str, Any] = json.loads(line)
        if "failed" in fields:
            raise Failed(fields["failed"])
        return fields

    def round(self) -> dict[str, float]:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the answer says why
            self.process.stdin.write(b"round\n")
            self.process.stdin.flush()
        return self.answer(ROUND_S)

    def close(self) -> None:
        """End the process. It may end by itself first, because some peers must free shared
        memory."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(15)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start(row: Row, job: Job, environments: Path | None) -> Process | None:
    """A peer that is ready for its rounds; None, with the reason in its row, where it failed."""
    folder = Path(job.place)
    folder.mkdir(parents=True)
    process = None
    try:
        name = TABLE["peers"][row.name].get("environment")
        own = environments is not None and name is not None
        python = interpreter(name, environments) if own else Path(sys.executable)
        process = Process(python, row.name, job, folder.with_suffix(".log"))
        row.versions = process.answer(PREPARE_S)["versions"]
        return process
    except (CannotInstall, Failed) as error:
        row.failed = str(error)
        if process is not None:
            process.close()
        return None


def take_turns(
    rows: list[Row],
    jobs: dict[str, Job],
    rounds: int,
    environments: Path | None,
    report: Callable[[str], None],
) -> None:
    """Fill the rows with `rounds` rounds; one more, before them, warms up and is dropped."""
    running: dict[str, Process] = {}
    try:
        for row in rows:
            report(f"preparing {row.name}")
            if process := start(row, jobs[row.name], environments):
                running[row.name] = process
        for number in range(rounds + 1):
            for row in rows:
                if row.name not in running:
                    continue
                try:
                    figures = running[row.name].round()
                    if number:
                        row.rounds.append(figures)
                except Failed as error:
                    row.failed = str(error)
                    running.pop(row.name).close()
            report(f"round {number} of {rounds} is done")
    finally:
        for process in running.values():
            process.close()
