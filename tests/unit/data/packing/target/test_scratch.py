"""Folders on the way to a store: gone at the end, also those of a killed process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.data.packing.target.scratch import scratch, work_folder
from stoker.stores.location import Location

HOLD = """
import sys, time
from stoker.data.packing.target.scratch import scratch
with scratch() as folder:
    (folder / "shard.tar").write_bytes(b"1")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path))
    return tmp_path


def holder() -> tuple[subprocess.Popen[str], Path]:
    """A process that writes a shard, and its folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_goes_at_the_end_whatever_happens(cache: Path) -> None:
    with scratch() as one, scratch() as two:
        assert one != two
        (one / "shard.tar").write_bytes(b"1")
    with pytest.raises(OSError, match="full"), scratch():
        raise OSError("the disk is full")
    assert list((cache / "packing" / "shards").iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not() -> None:
    killed, left = holder()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    living, kept = holder()
    try:
        with scratch():
            assert not left.exists()
            assert (kept / "shard.tar").exists()
    finally:
        living.communicate("")
    assert not kept.exists()


def test_each_location_has_a_folder_of_its_own() -> None:
    places = [Location("s3", "a", "x"), Location("s3", "a", "y"), Location("gs", "a", "x")]
    assert len({work_folder(place) for place in places}) == 3
