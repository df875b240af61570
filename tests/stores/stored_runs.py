"""Tiny runs in a real object store, trained by machines that share nothing but the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chaos.trainers import Trainers
from stoker.run.directory import Run
from stoker.stores.client import StoreClient
from stoker.stores.head import Head, read_head
from stoker.stores.location import Location, location_of
from stoker.survive.remote.open import local_copy
from stoker.survive.remote.place import working_folder
from stoker.survive.remote.records import Content

FLAGS = (
    "--model resnet9_w2 --batch-size 16 --image-size 8 --crop pad --crop-pad 1 --crop-pct 1 "
    "--threads 1 --no-rehearse --no-report --ema --checkpoint-interval 0.3 --eval-every 4"
)
EPOCHS = 16
SLOW = {"fault": "stall", "at": "forward", "seconds": 0.06, "again": True}
"""Makes a run of EPOCHS last longer than four copies into the store."""
LEASE_S = 2.0


def command(data: str | Path, run: str | Path, epochs: int = EPOCHS, *more: str) -> list[str]:
    return ["train", str(data), "--run", str(run), *FLAGS.split(), "--epochs", str(epochs), *more]


@dataclass
class StoredRun:
    """A run in a store, the machines that train it, and what a test asks of it."""

    place: str
    data: str
    variables: Mapping[str, str]
    trainers: Trainers
    root: Path

    def __post_init__(self) -> None:
        self.log = self.root / "log"

    @property
    def location(self) -> Location:
        location = location_of(self.place)
        assert location
        return location

    def machine(self, name: str) -> dict[str, str]:
        """The environment of a machine with a disk of its own."""
        cache = {"STOKER_CACHE": str(self.root / name), "STOKER_LEASE_S": str(LEASE_S)}
        return {**self.variables, **cache}

    def train(
        self,
        machine: str,
        *faults: dict[str, Any],
        more: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        meanwhile: Callable[[list[int]], None] | None = None,
        ranks: int = 1,
    ) -> list[int]:
        """Train on a machine to whatever end it comes to; the exit codes of the ranks."""
        return self.trainers.train(
            command(self.data, self.place, EPOCHS, *more),
            self.log,
            ranks=ranks,
            faults=[SLOW, *faults],
            variables={**self.machine(machine), **(variables or {})},
            meanwhile=meanwhile,
        )

    def folder(self, machine: str) -> Path:
        """Where a machine trains it."""
        with self.on(machine):
            return working_folder(self.location)

    @contextmanager
    def on(self, machine: str) -> Iterator[None]:
        """The environment of a machine, for this process."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.machine(machine).items():
                patch.setenv(name, value)
            yield

    def copy(self, machine: str = "reader") -> Run:
        """What any other machine sees of it."""
        with self.on(machine):
            return Run(local_copy(self.place, checkpoints=True))

    def objects(self) -> StoreClient:
        with self.on("reader"):
            return StoreClient(self.location)

    def head(self) -> Head:
        head = read_head(self.objects())
        assert head is not None
        return head

    def content(self) -> Content:
        return Content.of(self.head().content, self.place)

    def printed(self) -> str:
        return " ".join(self.log.read_text().split())

    def assert_tidy(self) -> None:
        """The store has nothing but what the head names."""
        content, objects = self.content(), self.objects()
        folders = {"/".join(item.key.split("/")[:2]) for item in objects.list("checkpoints")}
        assert folders == set(content.checkpoints.values())
        assert {item.key for item in objects.list("files")} == content.keys


def secrets_in(folder: Path, variables: Mapping[str, str]) -> list[str]:
    """The files of a folder that hold a credential."""
    hidden = [v.encode() for n, v in variables.items() if "SECRET" in n or n.endswith("KEY_ID")]
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [str(p) for p in paths if any(text in p.read_bytes() for text in hidden)]
