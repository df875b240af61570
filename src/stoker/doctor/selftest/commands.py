"""`stoker train` as a user starts it: in processes of their own, with faults where a check wants.

Invariants: no wait is endless. No process is left behind: a command that is still running when its
block ends is killed, and ranks end with their launcher.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stoker.commit import sha256_file
from stoker.doctor.selftest.rows import Setup
from stoker.errors import StokerError
from stoker.faults import VARIABLE
from stoker.run.directory import Run
from stoker.survive.manifest import pointer
from stoker.text import one_line

Value = TypeVar("Value")

POLL_S = 0.05
LONGEST_S, SHORTEST_S = 300.0, 60.0
"""The most that a command, or an event in it, may take: less when the selftest's time is short."""
SMALL = (
    "--model resnet9_w4 --image-size 32 --batch-size 16 --threads 2 --no-rehearse "
    "--spot-notice off --log-interval 1"
)


class TookTooLong(StokerError):
    """What a check waited for did not happen in time."""


@dataclass
class Train:
    """A `stoker train` over the set, and its run directory."""

    setup: Setup
    name: str
    flags: str
    keys: str = ""
    """Lines of a recipe file, for keys that have no flag."""
    run: Run = field(init=False)

    def __post_init__(self) -> None:
        self.run = Run(self.setup.folder / "runs" / self.name)
        self.log = self.setup.folder / f"{self.name}.log"

    @property
    def words(self) -> list[str]:
        words = ["train", str(self.setup.dataset.path), "--run", str(self.run.path)]
        if self.keys:
            recipe = self.setup.folder / f"{self.name}.toml"
            recipe.write_text(self.keys)
            words += ["--recipe", str(recipe)]
        return [*words, *SMALL.split(), *self.flags.split()]

    @contextmanager
    def started(self, *faults: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
        """The command while it runs."""
        armed = [*json.loads(os.environ.get(VARIABLE) or "[]"), *faults]
        env = {**os.environ, "PYTHONUNBUFFERED": "1", VARIABLE: json.dumps(armed) if armed else ""}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stoker", *self.words],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()

    def finish(self, *faults: dict[str, Any]) -> int:
        """Run the command to its end; its exit code. Raises TookTooLong."""
        with self.started(*faults) as process:
            self.until(lambda: process.poll() is not None, "the end of the command")
            return int(process.returncode)

    def until(self, condition: Callable[[], Value], event: str) -> Value:
        """The value of a condition as soon as it is true. Raises TookTooLong."""
        limit_s = min(LONGEST_S, max(SHORTEST_S, self.setup.left_s))
        give_up = time.monotonic() + limit_s
        while not (value := condition()):
            if time.monotonic() > give_up:
                raise TookTooLong(f"waited {limit_s:.0f} s for {event}; {self.last_line()}")
            time.sleep(POLL_S)
        return value

    def printed(self) -> str:
        """What the command has printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def last_line(self) -> str:
        """The end of what it printed, for a reason."""
        lines = [line for line in self.printed().splitlines() if line.strip()]
        return f"its last line: {one_line(lines[-1]) if lines else 'none'}"

    def weights(self) -> str:
        """A hash of the newest weights. Raises StokerError where there are none."""
        newest = pointer(self.run.path / "last")
        if newest is None:
            raise StokerError(f"no checkpoint; {self.last_line()}")
        return sha256_file(self.run.path / "checkpoints" / newest / "weights.safetensors")

    def require(self, code: int, allowed: Sequence[int]) -> None:
        """Raise StokerError for an exit code that is not one of these."""
        if code not in allowed:
            raise StokerError(f"'stoker train' ended with {code}; {self.last_line()}")


def is_of_run(process: int, run: Run) -> bool:
    """Whether a process is a rank of a run: a number may have been given to another one."""
    with suppress(OSError):
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        return os.fsencode(run.path) in words
    return False


def send(process: int, number: signal.Signals, run: Run) -> None:
    """Send a signal to a rank of a run, if it still exists."""
    if is_of_run(process, run):
        with suppress(ProcessLookupError):
            os.kill(process, number)
