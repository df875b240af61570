"""Everything a packed set holds, seen as training and evaluation may see it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from stoker.data.dataset import Dataset
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import Order
from stoker.recipe.schedule import Batch

VIEWS = [
    View(crop="centre"),
    View(crop="centre", crop_pct=1.0, hflip=True),
    View(crop="resized", crop_scale=0.08, hflip=True, seed=1),
    View(crop="resized", crop_scale=0.9, hflip=True, seed=2),
    View(crop="pad", crop_pct=1.0, hflip=True, seed=3),
]
SIZES = (1, 8, 32, 224)


def seen(packed: Path, sizes: tuple[int, ...] = SIZES, views: list[View] = VIEWS) -> str:
    """A hash over every image of every split in every view; raises what the loader raises."""
    dataset = Dataset(packed)
    digest = hashlib.sha256()
    for name in dataset.description["splits"]:
        split = dataset.split(name)
        if not len(split):
            continue
        for view in views:
            order = Order(split.shard_sizes, dataset.fingerprint, seed=3)
            loader = BatchLoader(split, order, view, threads=2)
            size = min(len(split), 64)
            steps = -(-len(split) // size)
            try:
                for image_size in sizes:
                    plan = [Batch(step, step * size, size, image_size) for step in range(steps)]
                    for loaded in loader.batches(plan):
                        digest.update(loaded.images.tobytes())
            finally:
                loader.close()
    return digest.hexdigest()
