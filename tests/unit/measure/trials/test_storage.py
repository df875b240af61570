"""The disk alone: every byte once, nothing left behind, cold only where it was looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stoker.measure.trials import storage
from stoker.measure.trials.storage import (
    BLOCK,
    Read,
    as_data,
    measure_bare_storage,
    measure_small_files,
    measure_storage,
    read_at_random,
    read_sequentially,
    trial_file,
)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "shards"
    folder.mkdir()
    paths = []
    for number, blocks in enumerate((3, 7)):
        path = folder / f"{number}.tar"
        path.write_bytes(np.random.default_rng(number).bytes(blocks * BLOCK))
        paths.append(path)
    return paths


def test_all_is_read_once(files: list[Path]) -> None:
    row, random = read_sequentially(files, 60), read_at_random(files, 3, 60)
    assert row.bytes == random.bytes == 10 * BLOCK
    assert random.reads == 10
    assert row.mb_per_s > 0 and row.images_per_s(BLOCK) > 0


def test_time_ends_a_read(files: list[Path]) -> None:
    assert read_sequentially(files, 0).bytes == 0
    assert read_at_random(files, 2, 0).bytes == 0


def test_what_is_smaller_than_a_block_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"x" * 100)
    assert read_at_random([path], 2, 60).bytes == 100


def test_cold_is_what_was_looked_at() -> None:
    assert Read(1, 1, 1.0, 0.0).is_cold
    assert not Read(1, 1, 1.0, 0.5).is_cold
    assert not Read(1, 1, 1.0, None).is_cold


def test_nothing_is_left_beside_a_set(files: list[Path], tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    speed = measure_storage(tmp_path / "shards", files, tmp_path, 2, 60.0)
    assert sorted(tmp_path.rglob("*")) == before
    assert speed.metadata is not None and speed.metadata.made
    plain = as_data(speed)
    assert plain["metadata"]["files_per_s"] > 0 and plain["row"]["mb_per_s"] > 0


def test_where_nothing_can_be_written_files_are_only_opened(
    files: list[Path], tmp_path: Path
) -> None:
    opened = measure_small_files(tmp_path / "not there", files)
    assert opened is not None and not opened.made and opened.files_per_s > 0
    assert measure_small_files(tmp_path / "not there", []) is None


def test_a_trial_file_is_bounded_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "TRIAL_BYTES", 4 << 20)
    speed = measure_bare_storage(tmp_path, 2, 60.0)
    assert speed.written_mb_per_s is not None and speed.written_mb_per_s > 0
    assert speed.row.bytes <= 4 << 20
    assert not list(tmp_path.iterdir())


def test_a_trial_file_goes_however_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "TRIAL_BYTES", 1 << 20)
    with pytest.raises(KeyboardInterrupt), trial_file(tmp_path, 60) as (path, _):
        assert path.stat().st_size == 1 << 20
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
