"""The target that a text names: the one place that tells a folder from a location."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.data.packing.target.folder import FolderTarget
from stoker.data.packing.target.stored import StoreTarget
from stoker.data.packing.target.target import PackTarget
from stoker.stores.location import location_of


def target_of(out: str | os.PathLike[str]) -> PackTarget:
    """The target of this name. Raises BadRequest for a location that cannot be written."""
    location = location_of(out)
    return StoreTarget(location) if location else FolderTarget(Path(out))
