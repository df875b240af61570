from __future__ import annotations

import os
from pathlib import Path

import pytest

from integration.site import IMAGES
from samples import image_folder
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack


@pytest.fixture(scope="session", autouse=True)
def core_of_worker() -> None:
    """Where tests run side by side, each worker and what it starts has a core of its own: threads
    of torch that share cores spin for each other, which makes steps ten times as slow."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "pictures", classes=4, images=100, val=37, size=(40, 36))
    return pack(folder, root / "packed", storage=Storage(codec="raw"), shard_images=64)


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed set on the disk that the machines of a site share."""
    root = tmp_path_factory.mktemp("disk")
    folder = image_folder(root / "pictures", classes=4, images=IMAGES // 4, val=5, size=(28, 28))
    return pack(folder, root / "packed", storage=Storage(codec="raw"), shard_images=64)
