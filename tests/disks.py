"""Real file systems for tests, small enough to fill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_file_system(place: Path, size: str) -> Iterator[Path]:
    """A tmpfs of this size, mounted for a while; skips where nothing may be mounted."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
