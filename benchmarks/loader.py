"""Our loader against torch DataLoader + ImageFolder + PIL: images per CPU-second.

    python benchmarks/loader.py IMAGES [--rounds 5] [--size 224]

IMAGES is a folder of photographs, or a tar of them, in one class or many. They are packed with the
longer side at 500 pixels; the peer reads the very same JPEG bytes as files. Both give uint8 batches
of RandomResizedCrop(0.08..1) + flip, on as many threads or workers as there are cores. Rounds are
interleaved; CPU time counts user and system time of all threads and workers.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from stoker.data.crops import View
from stoker.data.index import Dataset
from stoker.data.listing import IMAGE_SUFFIXES
from stoker.data.loader import Loader
from stoker.data.order import Order
from stoker.data.pack import pack
from stoker.fleet.local import usable_cores
from stoker.recipe.position import Timeline
from stoker.recipe.recipe import Recipe

BATCH = 250


def cpu_s() -> float:
    """User and system time of this process and of children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in used)


def class_folder(images: Path, place: Path) -> Path:
    """All photographs below a folder, or in a tar, as one class folder."""
    if images.is_file():
        with tarfile.open(images) as archive:
            archive.extractall(place / "photographs", filter="data")
        images = place / "photographs"
    one = place / "folder" / "train" / "all"
    one.mkdir(parents=True)
    found = sorted(p for p in images.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
    for number, path in enumerate(found):
        (one / f"{number:06d}.jpg").symlink_to(path.resolve())
    return place / "folder"


def as_files(packed: Path, place: Path) -> Path:
    """The stored JPEGs of a packed set as an ImageFolder."""
    one = place / "files" / "all"
    one.mkdir(parents=True)
    for shard in sorted((packed / "train").glob("*.tar")):
        with tarfile.open(shard) as archive:
            for member in archive:
                if member.name.endswith(".jpg"):
                    stored = archive.extractfile(member)
                    assert stored is not None
                    (one / member.name).write_bytes(stored.read())
    return place / "files"


def ours(packed: Path, size: int, rounds: int) -> Callable[[], int]:
    split = Dataset(packed).split("train")
    order = Order(split.shard_sizes, "benchmark", seed=0)
    view = View(crop="resized", crop_scale=0.08, hflip=True)
    recipe = Recipe(epochs=rounds + 1, batch_size=BATCH, image_size=size)
    plan = Timeline.of(recipe, len(split)).batches()
    loader = Loader(split, order, view)

    def epoch() -> int:
        # A plan of its own a round: nothing is made ahead in somebody else's time.
        each = list(islice(plan, len(split) // BATCH))
        return sum(len(loaded.images) for loaded in loader.batches(each))

    return epoch


def torch_loader(files: Path, size: int) -> Callable[[], int]:
    transform = v2.Compose(
        [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )
    dataset = ImageFolder(str(files), transform)

    def epoch() -> int:
        # Workers are started and joined within the round, so that their time is counted; the
        # start itself is a fork and costs little.
        loader = torch.utils.data.DataLoader(
            dataset, BATCH, shuffle=True, num_workers=usable_cores(), drop_last=True
        )
        return sum(len(images) for images, _ in loader)

    return epoch


def timed(epoch: Callable[[], int]) -> tuple[float, float]:
    """Images per CPU-second and per second."""
    wall, cpu = time.perf_counter(), cpu_s()
    images = epoch()
    return images / (cpu_s() - cpu), images / (time.perf_counter() - wall)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=224)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        packed = pack(class_folder(given.images, place), place / "packed", val_share=0)
        runners = {
            "torch DataLoader, ImageFolder, PIL, uint8": torch_loader(
                as_files(packed, place), given.size
            ),
            "stoker": ours(packed, given.size, given.rounds),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in runners}
        for number in range(given.rounds + 1):
            for name, epoch in runners.items():
                rates = timed(epoch)
                if number:  # the first round warms caches
                    found[name].append(rates)
        reference = found["torch DataLoader, ImageFolder, PIL, uint8"]
        table = {
            name: {
                "images_per_cpu_s": round(statistics.median(r[0] for r in rates), 1),
                "spread": [round(min(r[0] for r in rates), 1), round(max(r[0] for r in rates), 1)],
                "images_per_s": round(statistics.median(r[1] for r in rates), 1),
                "ratio": round(
                    statistics.median(
                        np.array([r[0] for r in rates]) / np.array([r[0] for r in reference])
                    ),
                    3,
                ),
            }
            for name, rates in found.items()
        }
        print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
