"""Machines that train one run on one disk: start them, wait for their steps, see what they left."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from integration.namespaces import Cluster, Machine
from measured import held
from stoker.run.directory import Run
from stoker.run.events import Event

IMAGES, BATCH = 400, 40
TRAIN = (
    f"train packed --run run --model resnet9_w4 --image-size 24 --batch-size {BATCH} "
    "--checkpoint-interval 1"
)
LOST = "no longer answers: start the same command on every node again"
Record = Callable[[str, object], None]


@dataclass
class Site:
    """Some machines and the run they share. The first has rank 0, by the order of addresses."""

    folder: Path
    machines: list[Machine]
    epochs: int
    host: int = 0
    """The machine that hosts the rendezvous."""

    @property
    def address(self) -> str:
        """Where the nodes meet."""
        return self.machines[self.host].address

    @property
    def run(self) -> Run:
        return Run(self.folder / "run")

    def start(self, number: int, *more: str, yes: bool = True) -> subprocess.Popen[str]:
        """Launch a node; on any link, steps as small as these would wait for the exchange."""
        length = f"--epochs {self.epochs} --eval-every {self.epochs}"
        meeting = f"--nodes 1:{len(self.machines)} --rendezvous {self.address}:29400"
        words = [*TRAIN.split(), *length.split(), *meeting.split(), *more]
        words += ["--yes"] if yes else []
        machine = self.machines[number]
        return machine.start(words, self.folder, self.folder / f"{machine.name}.out")

    def printed(self, number: int) -> str:
        return (self.folder / f"{self.machines[number].name}.out").read_text()

    def first_step(self, world: int, after: float) -> Event | None:
        """The first step of an attempt with so many ranks that began after a moment."""
        for attempt in self.run.attempts():
            start = self.run.start_of(attempt)
            if start and start["world"] == world and start["time"] > after:
                for event in self.run.attempt_events(attempt):
                    if event["kind"] == "step":
                        return event
        return None

    def trains(self, world: int, after: float, within_s: float = 120.0) -> float:
        """Seconds from a moment to the first step that so many ranks made together."""
        self.wait(lambda: self.first_step(world, after) is not None, within_s)
        step = self.first_step(world, after)
        assert step is not None
        return float(step["time"]) - after

    def wait(self, happened: Callable[[], bool], timeout_s: float = 120.0) -> None:
        give_up = time.monotonic() + timeout_s
        while not happened():
            held(time.monotonic() < give_up, self.everything())
            time.sleep(0.1)

    def left(self, launcher: subprocess.Popen[str], since: float) -> float:
        """Seconds from a moment until a node had ended to be started again."""
        assert launcher.wait(timeout=180) == 75, self.everything()
        return time.time() - since

    def everything(self) -> str:
        logs = [*self.folder.glob("*.out"), *self.run.path.glob("*.log")]
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in logs)

    def finish(self, *launchers: subprocess.Popen[str], code: int = 0) -> None:
        codes = [launcher.wait(timeout=300) for launcher in launchers]
        # A node that a busy machine kept from every sign of life is lost to the others, rightly.
        held(75 not in codes, codes, self.everything())
        assert codes == [code] * len(codes), self.everything()

    def assert_whole(self) -> None:
        """Finished, and every sample was seen exactly once in every epoch."""
        assert self.run.finished
        position = 0
        for number, step in enumerate(self.run.steps()):
            assert (step["step"], step["position"]) == (number, position)
            assert step["images"] == step["batch"]
            position += step["batch"]
        assert position == self.epochs * IMAGES


@contextmanager
def site_of(count: int, disk: Path, folder: Path, epochs: int) -> Iterator[Site]:
    """So many machines with nothing on them but a packed set."""
    (folder / "packed").symlink_to(disk)
    cluster = Cluster(count)
    try:
        yield Site(folder, cluster.machines, epochs)
    finally:
        cluster.remove()
