from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from chaos.trainers import Trainers
from samples import image_folder
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is repeated until it is right may take long on a busy machine; an attempt may not."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(1800))


class Tables:
    """What was done to the runs, to be printed at the end."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def count(self, title: str, counts: Mapping[str, int]) -> None:
        cells = ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
        self.lines.append(f"{title}: {sum(counts.values())} ({cells})")

    def say(self, line: str) -> None:
        self.lines.append(line)


_tables = Tables()


@pytest.fixture(scope="session")
def tables() -> Tables:
    return _tables


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _tables.lines:
        terminalreporter.section("what was done to the runs")
        for line in _tables.lines:
            terminalreporter.write_line(line)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a save waits for its disk, and saves are many."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="stoker-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def trainers() -> Iterator[Trainers]:
    server = Trainers()
    yield server
    server.close()


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    return image_folder(root / "pictures", classes=4, images=70, val=13, size=(40, 36))


@pytest.fixture(scope="session")
def packed_sets(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same small pictures, stored both ways."""
    root = tmp_path_factory.mktemp("sets")
    return {
        codec: pack(photos, root / codec, storage=Storage(codec=codec), shard_images=50)
        for codec in ("jpeg", "raw")
    }
