"""Runs that several tests of using a model share: one for each way of storing the set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from samples import image_folder
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.recipe.resolve import resolve
from stoker.train.attempt.session import train
from tiny_runs import FLAGS

STORAGES = {
    "own bytes": Storage(),
    "shrunk": Storage(max_side=32),
    "original": Storage(codec="original"),
    "raw": Storage(codec="raw", max_side=40),
}


@dataclass(frozen=True)
class Trained:
    """A folder of photographs, the set that was packed of it, and a run on the set."""

    photos: Path
    packed: Path
    run: Path


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("used") / "photos", size=(48, 40), images=16, val=6)


@pytest.fixture(scope="session", params=STORAGES)
def stored_run(
    request: pytest.FixtureRequest, photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    """A run of two epochs, for each storage."""
    return trained(photos, tmp_path_factory.mktemp("stored"), STORAGES[request.param])


@pytest.fixture(scope="session")
def small_run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(photos, tmp_path_factory.mktemp("small"), STORAGES["shrunk"])


def trained(photos: Path, root: Path, storage: Storage) -> Trained:
    packed = pack(photos, root / "packed", storage=storage, shard_images=16, workers=1)
    flags = FLAGS | {"epochs": 2, "eval_batch_size": 7}
    assert train(packed, resolve(None, flags), root / "run") == "finished"
    return Trained(photos, packed, root / "run")
