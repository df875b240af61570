"""Reads some batches as one rank: python read_set.py SET RANK WORLD BATCHES -> a line of JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from itertools import islice

import stoker


def main() -> None:
    data, rank, world, batches = sys.argv[1], *map(int, sys.argv[2:5])
    digest, images = hashlib.sha256(), 0
    with stoker.Loader(
        data,
        batch_size=64,
        image_size=16,
        dtype="uint8",
        rank=rank,
        world_size=world,
        threads=1,
    ) as loader:
        for pixels, labels in islice(loader, batches):
            digest.update(pixels.numpy().tobytes())
            digest.update(labels.numpy().tobytes())
            images += len(labels)
        source = loader._index.source
        counts = [getattr(source, name, 0) for name in ("fetched", "ranges")]
    print(json.dumps({"digest": digest.hexdigest(), "images": images, "counts": counts}))


if __name__ == "__main__":
    main()
