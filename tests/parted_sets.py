"""Packed sets whose index is in partitions, though they are small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from stoker.data.packing.pack import pack
from stoker.data.packing.tables import index_writer


@contextmanager
def parted(above: int = 0) -> Iterator[None]:
    """Have splits of more images than this packed with an index in partitions."""
    with patch.object(index_writer, "WHOLE_ROWS", above):
        yield


def pack_both(folder: Path, out: Path, **options: Any) -> tuple[Path, Path]:
    """The same images packed with a whole index, and with one in partitions."""
    whole = pack(folder, out / "whole", workers=1, **options)
    with parted():
        return whole, pack(folder, out / "parted", workers=1, **options)
