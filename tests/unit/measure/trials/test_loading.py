"""Loading measured stage by stage: the same images in each, cold only where the kernel says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disks import small_file_system
from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.images.encode import CODECS, Storage
from stoker.data.loading import chunk_call
from stoker.data.loading.augment import Augmentation, augment
from stoker.data.packing.pack import pack
from stoker.host.page_cache import bytes_from_storage, cached_share, drop
from stoker.measure.trials.loading import (
    STAGES,
    Bench,
    LoadingSpeed,
    Pass,
    Setting,
    as_data,
    measure_loading,
)

QUICK = Setting(image_size=16, batch_size=8, threads=2, seconds=0.3)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=2, images=22, val=2, size=(120, 100))
    return Dataset(pack(folder, root / "packed", workers=1, shard_images=8))


def skip_unless_droppable(folder: Path) -> None:
    """Skip where a file cannot be dropped from the page cache, or the kernel does not tell."""
    file = folder / "large"
    file.write_bytes(np.random.default_rng(0).bytes(1 << 20))
    drop([file])
    if cached_share([file]) != 0.0 or bytes_from_storage() is None:
        pytest.skip("this file system does not let go of its pages, or does not tell")


def test_all_stages_load_the_same_images(packed: Dataset) -> None:
    names: list[str] = []
    setting = replace(QUICK, seconds=60)
    speed = measure_loading(packed, setting, lambda name, stage: names.append(name))
    assert tuple(names) == tuple(speed.passes) == STAGES
    assert {row.images for row in speed.passes.values()} == {44}
    stored = int(packed.split("train").length.sum())
    assert [row.bytes for row in speed.passes.values()] == [0, *[stored] * 5]
    assert speed.shards == speed.of_shards == 6
    assert all(row.images_per_s > 0 and row.cpu_s >= 0 for row in speed.passes.values())


def test_a_cold_pass_reads_from_the_disk_again_and_a_warm_one_does_not(
    packed: Dataset, tmp_path: Path
) -> None:
    skip_unless_droppable(tmp_path)
    speed = measure_loading(packed, replace(QUICK, seconds=60))
    for what in ("read", "loader"):
        cold, warm = speed.passes[f"{what} cold"], speed.passes[f"{what} warm"]
        assert cold.is_cold
        assert cold.fetched is not None and cold.fetched >= cold.bytes
        # The end of a tar holds no image and is not read.
        assert warm.held is not None and warm.held > 0.9 and not warm.is_cold
        assert warm.fetched is not None and warm.fetched < cold.bytes
    assert speed.was_cold


def test_images_are_augmented_as_in_training(
    packed: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def counted(augmentation: Augmentation, seed: int, *arrays: Any) -> None:
        counts.append(len(arrays[0]))
        augment(augmentation, seed, *arrays)

    monkeypatch.setattr("stoker.data.loading.loader.augment", counted)
    augmentation = Augmentation(auto="trivial", random_erasing=0.5)
    speed = measure_loading(packed, replace(QUICK, seconds=60, augmentation=augmentation))
    assert sum(counts) >= 3 * 44  # decode, loader cold, loader warm
    assert json.loads(json.dumps(as_data(speed)))["augmentation"] == vars(augmentation)


def test_memory_is_never_called_cold(packed: Dataset, tmp_path: Path) -> None:
    import shutil

    with small_file_system(tmp_path / "memory", "8m") as folder:
        shutil.copytree(packed.path, folder / "packed")
        speed = measure_loading(Dataset(folder / "packed"), QUICK)
        assert not speed.was_cold
        assert as_data(speed)["first_epoch_times_as_long"] is None


def test_only_shards_that_time_and_memory_allow_are_used(packed: Dataset) -> None:
    bench = Bench(packed.split("train"), "here", QUICK)
    bench.choose_shards(memory=0)
    assert len(bench.shards) == 1
    assert len(bench.samples) == bench.count == len(set(bench.samples.tolist()))
    shard = {int(packed.split("train").shard[sample]) for sample in bench.samples}
    assert sorted(shard) == bench.shards
    bench.choose_shards(memory=1 << 40)
    assert len(bench.shards) >= 1


def test_no_time_still_measures_a_batch(packed: Dataset) -> None:
    speed = measure_loading(packed, replace(QUICK, seconds=1e-9))
    assert all(0 < row.images <= 44 for row in speed.passes.values())
    assert speed.passes["loader cold"].images == speed.passes["loader warm"].images == 8


def speed_of(read_cold: float, read_warm: float, decode: float) -> LoadingSpeed:
    def row(rate: float, share: float | None = None) -> Pass:
        return Pass(1000, 10**6, 1000 / rate, 1.0, share)

    rates = (10**5, decode, read_cold, read_warm, min(read_cold, decode), min(read_warm, decode))
    shares = (None, None, 0.0, 1.0, 0.01, 1.0)
    passes = dict(zip(STAGES, map(row, rates, shares), strict=True))
    return LoadingSpeed(QUICK, 2, "jpeg", 1000, 10**6, 10**9, 1, 1, passes)


@pytest.mark.parametrize(
    ("read_cold", "read_warm", "decode", "cold", "warm", "longer"),
    [
        (5000, 50000, 1000, "decoding", "decoding", 1),
        (500, 50000, 1000, "reading", "decoding", 2),
        (500, 800, 1000, "reading", "reading", 1.6),
    ],
)
def test_the_slower_of_reading_and_decoding_limits_the_loader(
    read_cold: float, read_warm: float, decode: float, cold: str, warm: str, longer: float
) -> None:
    speed = speed_of(read_cold, read_warm, decode)
    assert speed.was_cold
    assert speed.bound_by == {"cold": cold, "warm": warm}
    assert speed.first_epoch == pytest.approx(longer)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_measured(codec: str, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", classes=2, images=8, val=1)
    kept = pack(folder, tmp_path / "packed", storage=Storage(codec=codec), workers=1)
    speed = measure_loading(Dataset(kept), replace(QUICK, seconds=60))
    assert speed.passes["loader warm"].images == 16


def test_what_the_compiled_extra_brings_is_measured_where_it_is_in_use(
    packed: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = replace(QUICK, seconds=60)
    with monkeypatch.context() as patch:
        patch.setattr(chunk_call, "extra", None)
        speed = measure_loading(packed, setting)
    assert speed.plain is speed.extra_gain is None
    with_plain = replace(speed, plain=replace(speed.passes["decode"], cpu_s=6.0))
    with_plain.passes["decode"] = replace(speed.passes["decode"], cpu_s=4.0)
    assert with_plain.extra_gain == pytest.approx(1.5)
    assert as_data(with_plain)["extra_gain"] == pytest.approx(1.5)
    if chunk_call.extra is not None:
        speed = measure_loading(packed, setting)
        assert speed.plain is not None
        assert speed.plain.images == 44
