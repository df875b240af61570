"""A grid under an engine: kills by a schedule, and what the processes of the grid did.

Invariants: the kills are the same for every engine, by the number of finished cells and a seed. A
driver that was killed is started again after a second; one that ends while cells are missing is
started again at once, up to MOST_STARTS times.
"""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grid_engines.outcome import cells_below, is_finished
from grid_engines.processes import MARK, Process, end_all, marked
from grid_engines.table import Engine, Site, Words

POLL_S, FIRST_POLL_S, AGAIN_S = 0.25, 0.05, 1.0
MOST_STARTS = 6
PATIENCE_S, WAIT_S = 1800.0, 10.0
JOIN_AT, EDIT_AT = 2, 4
Kill = tuple[int, str]
"""So many finished cells, and what is killed then: a command, its worker, or the driver."""


@dataclass
class Trial:
    """What was observed of one grid."""

    engine: Engine
    site: Site
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    began: float = field(default_factory=time.monotonic)
    starts: int = 0
    start_up_s: float | None = None
    """From the start of the driver to the first command."""
    seconds: float = 0.0
    memory: int = 0
    """The most bytes of the engine's own processes, before the first kill."""
    commands: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The processes that ran each cell."""
    at_once: set[str] = field(default_factory=set)
    """Cells that two commands ran at the same time."""
    needless: int = 0
    """Commands for cells that were done."""
    left_over: int = 0
    """Commands that ran on, a second after their driver was killed."""
    killed: list[str] = field(default_factory=list)
    driver: subprocess.Popen[bytes] | None = None
    done: set[Path] = field(default_factory=set)

    @property
    def log(self) -> Path:
        return self.site.folder / "driver.txt"

    def launch(self, words: Words, log: Path | None = None) -> subprocess.Popen[bytes]:
        with (log or self.log).open("ab") as output:
            return subprocess.Popen(
                words,
                cwd=self.site.folder,
                env={**os.environ, MARK: self.mark, "SBATCH_JOB_NAME": self.mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start(self) -> None:
        if self.starts and self.engine.before_again:
            self.launch(self.engine.before_again(self.site)).wait(timeout=60)
        self.driver = self.launch(self.engine.start(self.site))
        self.starts += 1

    def end(self) -> None:
        """Leave nothing behind."""
        if self.engine.slurm:
            subprocess.run(["scancel", f"--name={self.mark}"])
        end_all(self.mark)

    def look(self) -> list[Process]:
        """Note what runs now; returns the engine's processes and the cells' commands."""
        processes = marked(self.mark)
        cells = cells_below(self.site.folder)
        self.done |= {cell for cell in cells if cell not in self.done and is_finished(cell)}
        commands = [process for process in processes if process.cell]
        if commands and self.start_up_s is None:
            self.start_up_s = time.monotonic() - self.began
        for command in commands:
            if command.pid not in self.commands[command.cell or ""]:
                self.commands[command.cell or ""].add(command.pid)
                self.needless += Path(command.cell or "") in self.done
        names = [command.cell for command in commands]
        self.at_once |= {name for name in names if name and names.count(name) > 1}
        if not self.killed:
            own = sum(process.memory() for process in processes if not process.cell)
            self.memory = max(self.memory, own)
        return processes

    def is_over(self, cells: int) -> bool:
        """Whether the driver has ended and every cell is done. Starts it again where they are not.
        Raises TimeoutError."""
        if time.monotonic() - self.began > PATIENCE_S:
            raise TimeoutError(f"{len(self.done)} of {cells} cells after {PATIENCE_S:.0f} s")
        if self.driver is None or self.driver.poll() is None:
            return False
        if len(self.done) >= cells or self.starts == MOST_STARTS:
            return True
        self.start()
        return False

    def strike(self, what: str, processes: Sequence[Process], chance: random.Random) -> bool:
        """Kill something; returns False where there is nothing to kill now."""
        commands = sorted((each for each in processes if each.cell), key=lambda each: each.pid)
        if not commands or self.driver is None or self.driver.poll() is not None:
            return False
        command = chance.choice(commands)
        if what == "driver":
            self.driver.kill()
            self.driver.wait()
            time.sleep(AGAIN_S)
            self.left_over = sum(bool(each.cell) for each in marked(self.mark))
            self.start()
        else:
            parents = {each.pid: each for each in processes if each.pid != self.driver.pid}
            worker = parents.get(command.parent, command)
            if not (worker if what == "worker" else command).kill():
                return False
        self.killed.append(what)
        return True


def begin(trial: Trial) -> float:
    """Run a grid until its first command; returns the seconds until then. Raises TimeoutError."""
    trial.start()
    try:
        while trial.start_up_s is None:
            if trial.is_over(1):
                raise TimeoutError(f"no command in {trial.starts} starts")
            trial.look()
            time.sleep(FIRST_POLL_S)
        return trial.start_up_s
    finally:
        trial.end()


def run_with_kills(
    trial: Trial, kills: Sequence[Kill], seed: int, cells: int, within_s: float = 2.0
) -> Trial:
    """Run a grid to its end, with kills up to so many seconds after their number of cells. Raises
    TimeoutError."""
    chance = random.Random(seed)
    moments = [(done, what, chance.uniform(0, within_s)) for done, what in kills]
    since: float | None = None
    trial.start()
    try:
        while not trial.is_over(cells):
            processes = trial.look()
            if moments and len(trial.done) >= moments[0][0]:
                since = since or time.monotonic()
                waited = time.monotonic() - since >= moments[0][2]
                if waited and trial.strike(moments[0][1], processes, chance):
                    del moments[0]
                    since = None
            time.sleep(POLL_S if trial.start_up_s else FIRST_POLL_S)
        trial.look()
        trial.seconds = time.monotonic() - trial.began
    finally:
        trial.end()
    return trial


@dataclass(frozen=True)
class Joined:
    """What became of a worker that joined, and of an edit of the recipe in mid-grid."""

    code: int | None
    """How the second process ended; None where it ran until the end."""
    helped: bool
    """Whether two cells ran at the same time, where one worker had been asked for."""


def run_with_edit(trial: Trial, recipe: Path, edited: str, cells: int) -> Joined:
    """Run a grid of one worker to its end, let a second one join after two cells, and edit the
    recipe after four. Raises TimeoutError."""
    second: subprocess.Popen[bytes] | None = None
    helped = False
    trial.start()
    try:
        while not trial.is_over(cells):
            names = {process.cell for process in trial.look() if process.cell}
            helped = helped or len(names) > 1
            if second is None and len(trial.done) >= JOIN_AT:
                join = trial.engine.join or trial.engine.start
                second = trial.launch(join(trial.site), trial.site.folder / "joined.txt")
            if len(trial.done) >= EDIT_AT:
                recipe.write_text(edited, encoding="utf-8")
            time.sleep(POLL_S if trial.start_up_s else FIRST_POLL_S)
        trial.look()
        return Joined(end_of(second) if second else None, helped)
    finally:
        trial.end()


def end_of(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code of a process that ends soon; None for one that goes on."""
    try:
        return process.wait(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        return None
