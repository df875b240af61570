"""The measures of how well an order mixes a set, and the orders it is compared with."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.scale import shuffle, shuffle_training
from benchmarks.scale.shuffle_measures import (
    class_mix,
    expected_pairs,
    movement,
    place_in_epoch,
    same_shard_pairs,
)
from benchmarks.scale.shuffle_orders import Buffered, Perfect, ShardsOnly, Stored

from stoker.data.loading.order import Order

SIZES = np.array([30, 7, 0, 50, 13, 41, 59])
ALL = int(SIZES.sum())


def order(lanes: int = 4, window: int = 16, sizes: np.ndarray = SIZES) -> Order:
    return Order(sizes, "set", 3, lanes, window)


@pytest.mark.parametrize(
    "other",
    [
        Perfect(ALL, 0),
        ShardsOnly(order()),
        Buffered(SIZES, 20, 0),
        Buffered(SIZES, 1, 0),
        Buffered(SIZES, 10 * ALL, 0),
        Stored(order(), np.arange(ALL)[::-1]),
    ],
    ids=lambda other: type(other).__name__,
)
def test_each_sample_comes_once_an_epoch(other):
    for epoch in range(2):
        ids, epochs = other.part(epoch * ALL, ALL, 0, ALL)
        assert np.array_equal(np.sort(ids), np.arange(ALL))
        assert (epochs == epoch).all()


@pytest.mark.parametrize("lanes", [1, 4, 7])
def test_shards_only_is_the_order_with_windows_of_one_sample(lanes):
    narrow, epochs = order(lanes, window=1), np.arange(2 * ALL)
    assert np.array_equal(ShardsOnly(narrow).samples_at(epochs), narrow.samples_at(epochs))


def test_a_buffer_of_one_sample_gives_whole_shards():
    ids = Buffered(SIZES, 1, 0).part(0, ALL, 0, ALL)[0]
    shards = np.searchsorted(np.cumsum(SIZES), ids, side="right")
    assert np.count_nonzero(np.diff(shards)) == np.count_nonzero(SIZES) - 1


def test_hosts_with_buffers_give_equal_shares_of_their_own_shards():
    sizes = np.full(12, 10)
    buffered = Buffered(sizes, 5, 0, hosts=3)
    parts = [np.empty(0, int) for _ in range(3)]
    for position in range(0, buffered.samples, 12):
        ids = buffered.part(position, 12, 0, 12)[0]
        parts = [np.append(part, ids[4 * h : 4 * h + 4]) for h, part in enumerate(parts)]
    assert [len(set((part // 10).tolist())) for part in parts] == [4, 4, 4]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(120))


def test_hosts_may_have_shards_of_any_size():
    buffered = Buffered(SIZES, 5, 0, hosts=3)
    for position in range(0, 6 * buffered.samples, 3):
        ids = buffered.part(position, 3, 0, 3)[0]
        assert len(set(ids.tolist())) == 3


def test_a_part_of_an_epoch_is_looked_at_once_the_buffers_have_settled():
    sizes = np.full(100, 10)
    assert Buffered(sizes, 50, 0, hosts=2).region == (200, 1000)
    assert Buffered(sizes, 50, 0, hosts=2, reach=30).region == (200, 260)
    assert Buffered(sizes, 5000, 0, hosts=2, reach=30).region == (0, 1000)


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_sample_is_found_where_it_comes(epoch):
    own = order(lanes=5)
    positions = np.arange(0, ALL, 7)
    ids = own.samples_at(positions + epoch * ALL)
    assert np.array_equal(place_in_epoch(own, epoch, ids), positions)


def test_expected_pairs_are_those_of_all_batches():
    sizes = np.array([3, 1, 4])
    batches = list(combinations(range(8), 3))
    mean = np.mean([same_shard_pairs(np.array(batch), sizes) for batch in batches])
    assert mean == pytest.approx(expected_pairs(3, sizes))


def test_movement_of_known_places():
    still = movement(np.arange(10), np.arange(10), 10)
    assert (still.mean, still.correlation) == (0, pytest.approx(1))
    turned = movement(np.arange(10), np.arange(10)[::-1], 10)
    assert (turned.mean, turned.correlation) == (pytest.approx(0.5), pytest.approx(-1))


def test_class_mix_of_known_batches():
    shares = np.full(4, 0.25)
    even, single = class_mix(np.array([0, 1, 2, 3]), shares), class_mix(np.zeros(4, int), shares)
    assert (even.distinct, even.distance, even.excess) == (4, 0, 0)
    assert (single.distinct, single.distance, single.excess) == (1, 0.75, 4)


def figures(tmp_path: Path, hosts: str = "1") -> dict[str, dict]:
    parser, file = argparse.ArgumentParser(), tmp_path / "rows.json"
    shuffle.add_flags(parser)
    sizes = ["--images", "60000", "--shard-images", "50", "--classes", "50", "--batch", "64"]
    assert shuffle.run(parser.parse_args([*sizes, "--hosts", hosts, "--json", str(file)])) == 0
    return {row["order"]: row for row in json.loads(file.read_text())}


def test_a_packed_set_is_mixed_as_by_a_perfect_shuffle(tmp_path, capsys):
    rows = figures(tmp_path)
    own, perfect = rows["stoker"], rows["perfect shuffle"]
    assert own["from_set"]["mean"] == pytest.approx(1 / 3, abs=0.03)
    assert abs(own["from_epoch_to_epoch"]["correlation"]) < 0.1
    packed, ideal = own["batch_mix"]["as packed"], perfect["batch_mix"]["as packed"]
    assert packed["excess"] == pytest.approx(1, abs=0.03)
    assert packed["distinct"] == pytest.approx(ideal["distinct"], rel=0.02)
    printed = capsys.readouterr().out
    assert "| 60,000 | 1 | 64 | as packed | stoker |" in printed


def test_lanes_and_windows_mix_what_was_never_shuffled(tmp_path):
    rows = figures(tmp_path)
    excess = {name: row["batch_mix"]["class by class"]["excess"] for name, row in rows.items()}
    assert excess["perfect shuffle"] == pytest.approx(1, abs=0.03)
    assert excess["stoker"] < 1.5 < excess["buffer of 1,000 (model)"] < excess["shards only"]


def test_shares_are_shown_with_two_digits():
    shares = (1, 0.228, 0.0027, 1.7e-7, 0)
    assert [shuffle.percent(s) for s in shares] == [
        "100 %",
        "23 %",
        "0.27 %",
        "0.000017 %",
        "0 %",
    ]


def test_the_same_flags_give_the_same_figures(tmp_path):
    assert figures(tmp_path, "8") == figures(tmp_path, "8")


def test_large_sets_are_measured_by_drawing(monkeypatch, tmp_path):
    """The drawn figures are near those of all batches."""
    exact = figures(tmp_path)["stoker"]
    monkeypatch.setattr(shuffle, "EXACT", 1000)
    monkeypatch.setattr(shuffle, "MOVED", 500)
    drawn = figures(tmp_path)["stoker"]
    assert drawn["from_set"]["mean"] == pytest.approx(exact["from_set"]["mean"], abs=0.05)
    assert drawn["same_shard"] == pytest.approx(exact["same_shard"], rel=0.1)


@pytest.mark.parametrize("case", shuffle_training.CASES, ids=lambda case: case.name)
def test_every_order_of_the_training_shows_the_whole_set(case):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 400))
    sizes = np.full(250, shuffle_training.SHARD)

    class Split(SimpleNamespace):
        def __len__(self) -> int:
            return len(labels)

    made = shuffle_training.arrangement(case, Split(labels=labels, shard_sizes=sizes), seed=0)
    batches = [made.part(start, 250, 0, 250)[0] for start in range(0, 4000, 250)]
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(4000))
    if case.order == "shards only":
        classes = np.mean([len(np.unique(labels[ids])) for ids in batches])
        assert classes > 9 if case.storage == shuffle_training.PACKED else classes < 9.5


def test_a_missing_archive_is_named(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    shuffle_training.add_flags(parser)
    missing = tmp_path / "none.tar.gz"
    assert shuffle_training.run(parser.parse_args([str(missing), str(tmp_path)])) == 0
    assert f"not run: {missing} is missing" in capsys.readouterr().out
