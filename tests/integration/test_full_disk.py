"""A disk that fills up in mid-run: a real, small file system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from disks import small_file_system
from integration.processes import finish, start
from stoker.errors import StokerError
from stoker.run.directory import Run
from stoker.survive.checkpoint import Snapshot
from stoker.survive.checkpoints import Checkpoints

WEIGHTS = 75_000
"""Floats of a snapshot: 300 kB, three of which fit on the disk."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "disk", "1200k") as place:
        yield place


def snapshot(step: int) -> Snapshot:
    weights = {"weight": torch.full((WEIGHTS,), float(step))}
    facts = {"step": step, "position": step * 10, "best": 0.5}
    return Snapshot(weights, {}, {"optimizer": {}}, facts)


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


def test_a_run_on_a_full_disk_ends_with_words_and_goes_on_afterwards(
    small_disk: Path, packed: Path
) -> None:
    flags = "--model resnet9_w4 --image-size 16 --batch-size 50 --epochs 8"
    command = ["train", str(packed), "--run", str(small_disk / "run"), *flags.split()]
    command += ["--checkpoint-interval", "0.1"]
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1_150_000))
    code, printed = finish(start(command, small_disk.parent))
    assert (code, "cannot save a checkpoint in" in printed) == (2, True), printed
    assert Run(small_disk / "run").steps() == []

    # Full in mid-run is the same for whoever did not rehearse, or was not alone on the disk.
    command += ["--no-rehearse"]
    code, printed = finish(start(command, small_disk.parent))
    assert code == 1, printed
    # One alarm for the checkpoint, one for the events, however often both were tried.
    assert 1 <= printed.count("alarm: ") <= 2
    assert "Traceback" not in printed
    filler.unlink()
    code, printed = finish(start(command, small_disk.parent))
    assert code == 0, printed
    assert [event["step"] for event in Run(small_disk / "run").steps()] == list(range(64))
