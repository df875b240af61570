"""One SLURM for all tests here, and a folder with images on its shared disk."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cluster.slurm import SlurmCluster, missing
from samples import image_folder
from stoker.faults import VARIABLE
from stoker.run.directory import Run
from waiting import Value, until

IMAGES, BATCH = 400, 40
MODEL = f"--model resnet9_w4 --image-size 24 --batch-size {BATCH}".split()
SMALL = [*MODEL, "--eval-every", "1000", "--checkpoint-interval", "2"]
ENDED_S, LOOK_S = 240, 0.5
"""Seconds that a job may take, and between two looks at it."""


@dataclass
class Desk:
    """A folder from which a user submits jobs."""

    cluster: SlurmCluster
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def stoker(self, *words: str, within_s: float = ENDED_S) -> tuple[int, str]:
        """Exit code and everything that a command printed."""
        done = subprocess.run(
            [sys.executable, "-m", "stoker", *words],
            cwd=self.folder,
            env={**self.cluster.variables, **self.variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=within_s,
        )
        return done.returncode, done.stdout

    def submit(self, *words: str) -> str:
        """The id of the job that a command submits."""
        code, printed = self.stoker(*words)
        assert code == 0, printed
        (job,) = re.findall(r"^job (\d+) is submitted", printed, re.MULTILINE)
        return str(job)

    def launch(self, name: str, options: str, *command: str) -> str:
        return self.submit("launch", "slurm", "--job-name", name, *options.split(), "--", *command)

    def train(self, name: str, options: str, epochs: int, *more: str) -> str:
        words = ("train", str(self.folder / "packed"), *SMALL, "--epochs", str(epochs), *more)
        return self.launch(name, options, *words)

    def run(self, name: str) -> Run:
        return Run(self.folder / "runs" / name)

    def steps(self, name: str) -> int:
        return max((event["step"] + 1 for event in self.run(name).merged("step")), default=0)

    def ends(self, folder: str, job: str) -> list[dict[str, Any]]:
        file = self.folder / folder / f"ends-{job}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait(self, condition: Callable[[], Value], within_s: float = ENDED_S) -> Value:
        """The value of a condition as soon as it is true."""
        try:
            return until(condition, within_s, LOOK_S)
        except AssertionError as error:
            raise type(error)(f"{error}\n{self.everything()}") from error

    def wait_for_end(self, job: str) -> str:
        """The last state of a job."""
        self.wait(lambda: self.cluster.ended(job))
        return self.cluster.state(job)

    def everything(self) -> str:
        """The queue and every output, for a test that failed."""
        files = sorted(self.folder.rglob("slurm-*.txt")) + sorted(self.folder.rglob("ends-*"))
        texts = [f"--- {file.relative_to(self.folder)}\n{file.read_text()}" for file in files]
        return self.cluster.call("squeue") + "\n".join(texts)

    def assert_whole(self, name: str, epochs: int) -> None:
        """Finished, and every sample was trained on once in every epoch."""
        run, position = self.run(name), 0
        assert run.finished, self.everything()
        for number, step in enumerate(run.steps()):
            assert (step["step"], step["position"]) == (number, position)
            assert step["images"] == step["batch"]
            position += step["batch"]
        assert position == epochs * IMAGES


def slow(seconds: float) -> dict[str, str]:
    """Steps that take at least so long."""
    fault = {"fault": "stall", "at": "forward", "seconds": seconds, "again": True, "until": None}
    return {VARIABLE: json.dumps([fault])}


@pytest.fixture(scope="session")
def cluster() -> Iterator[SlurmCluster]:
    if reason := missing():
        pytest.skip(reason)
    # Not below pytest's own folder, which is private: munged's socket must be open to all users.
    root = Path(tempfile.mkdtemp(prefix="stoker-slurm-"))
    root.chmod(0o711)
    slurm = SlurmCluster(root)
    try:
        slurm.start()
        os.environ.update({name: slurm.variables[name] for name in ("SLURM_CONF", "PATH")})
        yield slurm
    finally:
        os.environ.pop("SLURM_CONF", None)
        try:
            slurm.stop()
        finally:
            shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared disk with images, packed and not."""
    from stoker.data.images.encode import Storage
    from stoker.data.packing.pack import pack

    root = tmp_path_factory.mktemp("disk")
    folder = image_folder(root / "pictures", classes=4, images=IMAGES // 4, val=5, size=(28, 28))
    pack(folder, root / "packed", storage=Storage(codec="raw"), shard_images=64)
    return root


MakeDesk = Callable[[Path, Mapping[str, str]], Desk]


@pytest.fixture(scope="session")
def desk_at(cluster: SlurmCluster, disk: Path) -> MakeDesk:
    def make(folder: Path, variables: Mapping[str, str]) -> Desk:
        folder.mkdir(exist_ok=True)
        for name in ("packed", "pictures"):
            (folder / name).symlink_to(disk / name)
        return Desk(cluster, folder, dict(variables))

    return make


@pytest.fixture
def desk(desk_at: MakeDesk, tmp_path: Path) -> Desk:
    return desk_at(tmp_path / "desk", slow(0.2))


EPOCHS_OF_LIMIT = 30


@pytest.fixture(scope="session", autouse=True)
def limited(desk_at: MakeDesk, tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, str]:
    """A job with 90 s of work and a limit of a minute. It runs on node n3 beside all other tests,
    which use the other nodes, and is looked at last."""
    desk = desk_at(tmp_path_factory.mktemp("limited") / "desk", slow(90 / (EPOCHS_OF_LIMIT * 10)))
    return desk, desk.train("limited", "--time 1 --signal USR1@5 --nodelist n3", EPOCHS_OF_LIMIT)
