from __future__ import annotations

from pathlib import Path

import pytest

from samples import image_folder
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "pictures", classes=4, images=100, val=37, size=(40, 36))
    return pack(folder, root / "packed", storage=Storage(codec="raw"), shard_images=64)
