"""Runs that take a second: a set of tiny raw images, flags for it, and one compute thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from samples import image_folder
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack

FLAGS: dict[str, Any] = {
    "model": "resnet9_w2",
    "batch_size": 16,
    "image_size": 8,
    "crop": "pad",
    "crop_pad": 1,
    "crop_pct": 1.0,
    "threads": 1,
    "rehearse": False,
}


@pytest.fixture(scope="module", autouse=True)
def one_thread_alone() -> Iterator[None]:
    """As one of very many ranks on this machine would compute, but without them. A module that
    imports this fixture uses it."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as environment:
        for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
            environment.delenv(name, raising=False)
        environment.setenv("LOCAL_WORLD_SIZE", "1000")
        yield
    torch.set_num_threads(before)


def tiny_set(root: Path) -> Path:
    """A packed set of 60 training images and 15 others, in shards of 16."""
    photos = image_folder(root / "photos", size=(8, 8), suffix="png", images=20, val=5)
    storage = Storage(codec="raw")
    return pack(photos, root / "packed", storage=storage, val_share=0, shard_images=16, workers=1)
