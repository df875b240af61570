"""The compiled extra builds as its documentation says, and changes no byte of a batch."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from integration.building import cannot_build
from samples import image_folder
from stoker.data.packing.pack import pack

ROOT = Path(__file__).parents[2]
READ = """
import hashlib, sys
from stoker.data.loading import chunk_call
from stoker.data.loading.crops import View
from stoker.data.dataset import Dataset
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import Order
from stoker.recipe.schedule import Timeline
from stoker.recipe.recipe import Recipe

split = Dataset(sys.argv[1]).split("train")
plan = Timeline.of(Recipe(epochs=3, batch_size=20, image_size=48), len(split)).batches()
view = View(crop="resized", crop_scale=0.08, hflip=True)
loader = BatchLoader(split, Order(split.shard_sizes, "same", seed=1), view)
seen = hashlib.sha256()
for loaded in loader.batches(plan):
    seen.update(loaded.images.tobytes())
loader.close()
print(chunk_call.extra is not None, seen.hexdigest())
"""


@pytest.fixture(scope="module")
def extra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to put on PYTHONPATH that holds the extra."""
    place = tmp_path_factory.mktemp("extra")
    if why := cannot_build(place, "pip", "setuptools"):
        pytest.skip(why)
    shutil.copytree(ROOT / "extensions" / "region", place / "source")
    # What is installed here builds it: a test fetches nothing.
    options = ["--no-build-isolation", "--no-deps", "--no-index", "-q", "-w", str(place)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(place / "source")]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
        wheel.extractall(place / "installed")
    return place / "installed"


def with_path(*folders: Path) -> dict[str, str]:
    given = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, folders), given])}


def test_its_own_tests_pass_and_none_is_skipped(extra: Path) -> None:
    tests = [
        f"tests/unit/data/{name}.py"
        for name in (
            *("images/test_region_extra", "images/test_jpeg_region", "images/test_jpeg_rows"),
            *("loading/test_render", "loading/test_chunk_call"),
        )
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=ROOT, env=with_path(extra), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def test_batches_are_the_same_byte_for_byte(extra: Path, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pictures", images=20, size=(320, 240), suffix="png")
    image_folder(tmp_path / "pictures", classes=2, images=20, size=(250, 330))
    packed = pack(folder, tmp_path / "packed", val_share=0)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    # An extra that is installed for good must not be seen by the run that does without.
    (hidden / "stoker_region.py").write_text("raise ImportError")
    said = [
        subprocess.run(
            [sys.executable, "-c", READ, str(packed)],
            env=with_path(path),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for path in (extra, hidden)
    ]
    assert [used for used, _ in said] == ["True", "False"]
    assert said[0][1] == said[1][1]
    assert len(said[0][1]) == hashlib.sha256().digest_size * 2
