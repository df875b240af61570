"""Prints, as JSON, hashes of what packing writes and of the first batches of the kept sets.

Run as a process of its own, with the environment that makes its bytes independent of the CPU.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from samples import picture
from stoker.commit import sha256_file
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import InOrder, Order
from stoker.data.packing.pack import pack
from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.schedule import Batch, Timeline

SETS = Path(__file__).parent / "data" / "1"
VIEWS = {
    "resized": View(crop="resized", hflip=True, seed=5),
    "pad": View(crop="pad", crop_pct=1.0, hflip=True, seed=5),
}
RECIPE = Recipe(
    epochs=4,
    phases=(
        Phase(from_epoch=0, image_size=12, batch_size=20),
        Phase(from_epoch=2, image_size=9, batch_size=13),
    ),
)
BATCHES = 8
"""Six of the first phase, two of the second."""


def photos(root: Path) -> Path:
    """A folder whose bytes depend on no encoder: kept JPEG files, and larger BMP files."""
    for number, shard in enumerate(sorted((SETS / "packed-jpeg" / "train").glob("*.tar"))):
        folder = root / f"class{number}"
        folder.mkdir(parents=True)
        with tarfile.open(shard) as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file and member.name.endswith(".jpg"):
                    (folder / Path(member.name).name).write_bytes(file.read())
        for more in range(3):
            picture(number, 100 + more, (61, 45)).save(folder / f"large{more}.bmp")
    return root


def packing() -> dict[str, dict[str, str]]:
    """The hash of each file that packing a folder writes, in each codec."""
    hashes = {}
    with tempfile.TemporaryDirectory() as place:
        root = photos(Path(place) / "photos")
        for codec in ("jpeg", "raw", "original"):
            storage = Storage(codec=codec, max_side=40)
            out = pack(root, Path(place) / codec, storage=storage, shard_images=25, workers=1)
            files = (path for path in sorted(out.rglob("*")) if path.is_file())
            hashes[codec] = {
                str(path.relative_to(out)): sha256_file(path)
                for path in files
                if not path.name.startswith(".")
            }
    return hashes


def digest(loader: BatchLoader, plan: Iterable[Batch]) -> str:
    """The hash of images, labels, samples and epochs of some batches."""
    total = hashlib.sha256()
    try:
        for loaded in loader.batches(plan):
            for array in (loaded.images, loaded.labels, loaded.samples, loaded.epochs):
                total.update(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
    finally:
        loader.close()
    return total.hexdigest()


def batches() -> dict[str, str]:
    """The hash of the first batches of each rank, by codec, view and number of ranks."""
    hashes = {}
    for codec in ("jpeg", "raw"):
        dataset = Dataset(SETS / f"packed-{codec}")
        split, val = dataset.split("train"), dataset.split("val")
        plan = list(islice(Timeline.of(RECIPE, len(split)).batches(), BATCHES))
        for world in (1, 2):
            for rank in range(world):
                place = f"{codec}, rank {rank} of {world}"
                here = {"rank": rank, "world": world, "threads": 1}
                for name, view in VIEWS.items():
                    for lanes in (1, 2):
                        order = Order(split.shard_sizes, dataset.fingerprint, 3, lanes)
                        loader = BatchLoader(split, order, view, **here)
                        hashes[f"{place}, {name}, {lanes} lanes"] = digest(loader, plan)
                evaluation = [Batch(0, 0, 8, 12), Batch(1, 8, 4, 12)]
                loader = BatchLoader(val, InOrder(), View(), **here)
                hashes[f"{place}, evaluation"] = digest(loader, evaluation)
    return hashes


if __name__ == "__main__":
    print(json.dumps({"packing": packing(), "batches": batches()}))
