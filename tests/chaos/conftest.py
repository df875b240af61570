from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.trainers import Trainers
from samples import image_folder
from stoker.data.pack import pack
from stoker.data.shard import Storage


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
def packed_sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same small pictures, stored both ways."""
    root = tmp_path_factory.mktemp("sets")
    folder = image_folder(root / "pictures", classes=4, images=70, val=13, size=(40, 36))
    return {
        codec: pack(folder, root / codec, storage=Storage(codec=codec), shard_images=50)
        for codec in ("jpeg", "raw")
    }
