"""Reading leaves a set as it is, to the byte and the second, and needs no right to write."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import Order
from stoker.data.packing.pack import pack
from stoker.data.packing.shard import Storage
from stoker.data.verify import verify
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline

NOBODY = 65534


@pytest.fixture(params=["jpeg", "raw"])
def locked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A set of files that nobody may write in folders that nobody may write."""
    folder = image_folder(tmp_path / "photos", images=24, val=4)
    # Not below pytest's own folder, which only its user may enter.
    root = Path(tempfile.mkdtemp(prefix="locked-"))
    out = pack(folder, root / "packed", storage=Storage(request.param), workers=1, shard_images=16)
    try:
        lock(out, 0o555, 0o444)
        root.chmod(0o755)
        yield out
    finally:
        lock(out, 0o755, 0o644)
        shutil.rmtree(root)


def lock(folder: Path, folders: int, files: int) -> None:
    folder.chmod(folders)
    for path in folder.rglob("*"):
        path.chmod(folders if path.is_dir() else files)


@contextmanager
def as_anybody() -> Iterator[None]:
    """Root may write everywhere: for a while, be somebody who may not."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def state(folder: Path) -> dict[str, tuple[int, int, int, str]]:
    """Size, times and hash of every file, and that there are no others."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (facts.st_size, facts.st_mtime_ns, facts.st_mode, digest)
    return found


def read_all(folder: Path) -> int:
    """Two epochs through the loader, crops and all; how many images."""
    dataset = Dataset(folder)
    split = dataset.split("train")
    order = Order(split.shard_sizes, dataset.fingerprint, seed=1, lanes=1, window=16)
    loader = BatchLoader(split, order, View(crop="resized", hflip=True, seed=1), threads=2)
    recipe = Recipe(epochs=2, batch_size=8, image_size=16)
    try:
        plan = Timeline.of(recipe, len(split)).batches()
        return sum(len(loaded.samples) for loaded in loader.batches(plan))
    finally:
        loader.close()


def test_reading_leaves_every_file_as_it_is(locked: Path) -> None:
    before = state(locked)
    with as_anybody():
        with pytest.raises(PermissionError):
            (locked / "train" / "00000.tar").open("r+b")
        with pytest.raises(PermissionError):
            (locked / "train" / "new").touch()
        assert read_all(locked) == 2 * 72
        assert verify(locked).problems == []
    assert state(locked) == before
