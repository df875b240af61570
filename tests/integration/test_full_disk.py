"""A disk that fills up in mid-run: a real, small file system."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stoker.errors import StokerError
from stoker.survive.checkpoint import Checkpoints, Snapshot

WEIGHTS = 75_000
"""Floats of a snapshot: 300 kB, three of which fit on the disk."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def snapshot(step: int) -> Snapshot:
    weights = {"weight": torch.full((WEIGHTS,), float(step))}
    return Snapshot(weights, {}, {"optimizer": {}}, {"step": step, "position": step * 10})


def newest_step(checkpoints: Checkpoints) -> int:
    found, _ = checkpoints.newest()
    assert found is not None
    assert found.weights["weight"][0] == found.facts["step"]
    return int(found.facts["step"])


def test_older_checkpoints_make_room_for_the_next(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk, keep=10)
    for step in range(1, 8):
        checkpoints.save(snapshot(step), best=step == 1)
        checkpoints.wait()
        assert newest_step(checkpoints) == step
    assert checkpoints.pointer("best") == "000000001"
    assert "000000001" in checkpoints.names()


def test_no_room_at_all_loses_nothing_and_heals(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk, keep=10)
    checkpoints.save(snapshot(1))
    checkpoints.wait()
    filler = small_disk / "filler"
    filler.write_bytes(bytes(700_000))
    checkpoints.save(snapshot(2))
    with pytest.raises(StokerError, match="No space left"):
        checkpoints.wait()
    assert newest_step(checkpoints) == 1
    filler.unlink()
    checkpoints.save(snapshot(3))
    checkpoints.wait()
    assert newest_step(checkpoints) == 3
