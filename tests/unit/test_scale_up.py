"""The simulator of large runs: its cache against the real one, and its figures where they are
known."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.scale import index, losses
from benchmarks.scale.fetches import PREFETCH, Alone, Reader, ShardCache, needs, windows_in
from benchmarks.scale.first_batch import FirstImages, Link, images_s
from benchmarks.scale.losses import Timing, replay
from benchmarks.scale.world import PACKED_IMAGES, Run, World, tar_bytes

from object_store import plain_http
from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.loading.order import Order
from stoker.data.packing.pack import pack
from stoker.data.stored_shards import StoredShards, within
from stoker.survive.save_interval import derive

CLASSES, IMAGES, SHARD = 2, 60, 5
ONE = Alone(1.0, 1000.0)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=CLASSES, images=IMAGES, size=(12, 10))
    return pack(folder, root / "web" / "set", workers=1, shard_images=SHARD, val_share=0)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each use of a file is later than the one before: the clock of a file system is too coarse
    to tell them apart."""
    numbers, real = itertools.count(2_000_000_000), os.utime

    def utime(file: int, times: tuple[int, int] | None = None) -> None:
        real(file, times or (next(numbers),) * 2)

    monkeypatch.setattr(os, "utime", utime)


class AtOnce(ThreadPoolExecutor):
    """Does what it is given before it returns: what is fetched is here after `follow`."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        call(*args, **options)
        return Future()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 1.5])
@pytest.mark.usefixtures("ticks")
def test_the_cache_holds_what_the_real_one_holds(
    share: float, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="no obstore: pip install obstore")
    local = Dataset(packed)
    world = World.of_set(local, seed=3)
    limit = int(share * world.bytes)
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STOKER_CACHE_GB", f"{limit / 1e9:.12f}")
    monkeypatch.setattr("stoker.data.stored_shards.FETCHERS", 1)
    index_bytes = (packed / "train" / "index.parquet").stat().st_size
    model, fetched = ShardCache(world.facts, limit, index_bytes), 0
    order = Order(world.sizes, world.fingerprint, world.seed, lanes=2, window=16)
    with plain_http(packed.parent) as server:
        source = Dataset(f"{server.endpoint}/set").split("train").source
        assert isinstance(source, StoredShards)
        source._fetchers = AtOnce()
        for position in range(0, 3 * world.images, 8):
            wanted = within(order.upcoming(position, [0, 1]), world.facts, model.share_bytes)
            fetched += len(model.follow(wanted))
            source.follow(partial(order.upcoming, position, [0, 1]))
            assert set(source._held) == set(model.held), position
            there = {n for n in range(world.shards) if source.files([n])}
            assert there == {n for n in range(world.shards) if n in model}, position
            assert source.fetched == fetched, position
        source.close()
    assert fetched >= world.shards
    assert (fetched == world.shards) == (share > 1)


def small_run(images: int, hosts: int, batch: int) -> tuple[World, Run]:
    world = World.of(images, 1000, 100, seed=1)
    return world, world.run(batch, hosts)


def test_a_cache_with_room_for_all_fetches_each_shard_once() -> None:
    world, run = small_run(40_000, 1, 64)
    cache = ShardCache(world.facts, 2 * world.bytes)
    first, second = Reader(run, 0, cache, ONE).epochs(2)
    assert first.shards == world.shards
    assert first.shard_bytes == world.bytes
    assert first.images == pytest.approx(PREFETCH * 64)
    assert (second.shards, second.images) == (0, 0)


def test_all_images_of_an_epoch_are_read_alone_without_a_cache() -> None:
    world, run = small_run(40_000, 1, 64)
    (first,) = Reader(run, 0, ShardCache(world.facts, 0), ONE).epochs(1)
    assert first.shards == 0
    assert first.images == pytest.approx(world.images)


def test_near_images_of_a_shard_come_by_one_request() -> None:
    far = World.of(40_000, 100_000, 100, seed=1)
    alone = Alone.of(far, far.run(64, 1), 0)
    assert 0.9 < alone.requests <= 1
    assert 100_000 <= alone.bytes < 120_000
    near = World.of(40_000, 100, 100, seed=1)
    alone = Alone.of(near, near.run(64, 1), 0)
    assert alone.requests < 1


def test_hosts_share_the_shards_on_the_edges_of_their_lanes() -> None:
    world, run = small_run(40_123, 4, 64)
    parts = [set(run.shards_of(host, 0).tolist()) for host in range(4)]
    assert set().union(*parts) == set(range(world.shards))
    shared = {n for a, b in itertools.combinations(parts, 2) for n in a & b}
    assert run.on_edges() == (len(shared), sum(map(len, parts)) - world.shards)
    assert 1 <= len(shared) <= 3


def test_the_windows_of_an_epoch_hold_every_image_once() -> None:
    world, run = small_run(40_123, 1, 64)
    counts = np.zeros(world.shards, dtype=np.int64)
    for lane in range(run.order.lanes):
        for window in range(windows_in(run.order)):
            numbers, images = needs(run.order, 1, lane, window)
            np.add.at(counts, numbers, images[: len(numbers)])
    assert counts.tolist() == world.sizes.tolist()


def test_a_part_of_an_epoch_is_scaled_to_all_of_it() -> None:
    world, run = small_run(400_000, 1, 60)
    limit = world.bytes // 20
    (whole,) = Reader(run, 0, ShardCache(world.facts, limit), ONE).epochs(1)
    (part,) = Reader(run, 0, ShardCache(world.facts, limit), ONE).epochs(1, most_windows=20)
    assert windows_in(run.order) > 20
    assert part.shards == pytest.approx(whole.shards, rel=0.05)


def test_a_shard_has_the_bytes_that_packing_writes(packed: Path) -> None:
    assert World.of(2500, 1000, PACKED_IMAGES, 0).sizes.tolist() == [1000, 1000, 500]
    assert tar_bytes(1, 0) == 10240
    split = Dataset(packed).split("train")
    assert tar_bytes(SHARD, int(np.asarray(split.length).max())) >= split.shards[0]["bytes"]


def test_an_index_is_measured_and_grows_with_the_rows() -> None:
    costs = index.measured_costs(1000, 0)
    assert 40 < costs.row < 200
    assert costs.row_memory >= 40
    assert 0.5 < costs.part / (1000 * costs.row) < 2
    world = World.of(10_000_000, 1000, 1000, 0)
    whole = index.whole_index(world, costs)
    parted = index.parted_index(world, 100, costs)
    assert whole.memory > 10_000_000 * 40
    assert parted.memory < whole.memory / 10
    assert parted.first_bytes + parted.later_bytes < whole.first_bytes / 10


def test_redone_work_follows_from_the_last_complete_save() -> None:
    timing = Timing(start_s=10, first_s=30, later_s=60, blocked_s=2, commit_s=1)
    cases = {5: 0, 20: 10, 39: 29, 41: 30, 42.5: 30.5, 44: 2, 101: 59, 104.5: 60.5, 106: 2, 108: 4}
    for life_s, redone_s in cases.items():
        spent = replay([life_s], timing)
        assert spent.redone_s == pytest.approx(redone_s), life_s
        parts = spent.start_s + spent.blocked_s + spent.redone_s + spent.kept_s
        assert parts == pytest.approx(life_s)


def test_simulated_losses_meet_the_formula() -> None:
    for hosts, rate in ((8, 0.01), (100, 0.01), (1000, 0.01)):
        lost = losses.simulate(hosts, rate, 2.0, 180.0, seed=0)
        assert lost.interval_s == derive(2.0, 24 / (hosts * rate)).seconds
        assert lost.share == pytest.approx(lost.formula, rel=0.1)
        assert lost == losses.simulate(hosts, rate, 2.0, 180.0, seed=0)


def test_a_first_batch_waits_for_its_latencies_and_its_bytes() -> None:
    link = Link(0.1, 1e6)
    alone = FirstImages(shards=20, alone=20, requests=20, waiting=0, shard_bytes=0)
    assert images_s(alone, 1000, link) == pytest.approx(0.3 + 0.02)
    in_shards = FirstImages(shards=4, alone=0, requests=0, waiting=1, shard_bytes=4_000_000)
    assert images_s(in_shards, 1000, link) == pytest.approx(4.1)
    assert math.isclose(link.seconds(5e6, 2), 5.2)
