"""Each sample once an epoch, the same for any number of ranks, from any position, at any scale."""

import math
import time
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from measured import held, measured
from stoker.data.loading.order import InOrder, Order, lanes_for
from stoker.recipe.schedule import cuts

quick = settings(deadline=None, max_examples=40)
EPOCHS = 3


@st.composite
def orders(draw):
    """What an order is made from: a way to make the same one anew, as often as asked."""
    sizes = draw(st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any))
    keys = {
        "fingerprint": draw(st.sampled_from(["one", "two"])),
        "seed": draw(st.integers(0, 5)),
        "lanes": draw(st.integers(1, 64)),
        "window": draw(st.sampled_from([1, 2, 7, 16, 64, 4096])),
    }
    return lambda: Order(np.array(sizes), **keys)


def rank_parts(order, position, size, world):
    edges = cuts(size, world)
    return [order.part(position, size, begin, end) for begin, end in pairwise(edges)]


def starts_of(order, size):
    """Where batches start that run through the ends of epochs, and whole ones only."""
    return range(0, EPOCHS * order.samples - size + 1, size)


@quick
@given(orders())
def test_each_sample_comes_once_an_epoch(make):
    order = make()
    seen = order.samples_at(np.arange(EPOCHS * order.samples)).reshape(EPOCHS, -1)
    for epoch in seen:
        assert np.array_equal(np.sort(epoch), np.arange(order.samples))


@quick
@given(orders(), st.integers(1, 97), st.integers(1, 9))
def test_batches_of_all_ranks_hold_each_sample_once_an_epoch(make, size, world):
    order = make()
    counts = np.zeros((EPOCHS, order.samples), dtype=int)
    for position in starts_of(order, size):
        for ids, epochs in rank_parts(order, position, size, world):
            np.add.at(counts, (epochs, ids), 1)
    assert counts.max() <= 1
    assert counts.size - counts.sum() == EPOCHS * order.samples % size
    assert (counts[: EPOCHS * order.samples // size * size // order.samples] == 1).all()


@quick
@given(orders(), st.integers(1, 200), st.integers(0, 5000))
def test_ranks_laid_end_to_end_give_the_same_batch_for_any_world(make, size, position):
    order = make()
    ids, epochs = order.part(position, size, 0, size)
    for world in (1, 2, 3, 4, 7, 8, 16, 100):
        parts = rank_parts(order, position, size, world)
        assert np.array_equal(np.concatenate([part[0] for part in parts]), ids)
        assert np.array_equal(np.concatenate([part[1] for part in parts]), epochs)


@quick
@given(orders(), st.integers(9, 64), st.data())
def test_a_fresh_order_goes_on_where_another_was_killed(make, size, data):
    running, fresh = make(), make()
    starts = starts_of(running, size)
    assume(starts)
    killed_at = data.draw(st.sampled_from(starts))
    for position in starts:
        ids = running.part(position, size, 0, size)[0]
        if position >= killed_at:
            assert np.array_equal(fresh.part(position, size, 0, size)[0], ids)


@quick
@given(orders(), st.data())
def test_the_sample_at_a_position_depends_on_no_other_question(make, data):
    order = make()
    whole = order.samples_at(np.arange(EPOCHS * order.samples))
    asked = data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=30))
    assert order.samples_at(np.array(asked)).tolist() == whole[asked].tolist()
    assert [int(make().samples_at(np.array([one]))[0]) for one in asked[:3]] == [
        whole[one] for one in asked[:3]
    ]


@quick
@given(orders(), st.integers(0, 500), st.integers(1, 200))
def test_epochs_beside_the_samples_are_those_of_their_positions(make, position, size):
    order = make()
    epochs = order.part(position, size, 0, size)[1]
    expected = np.arange(position, position + size) // order.samples
    assert sorted(epochs.tolist()) == expected.tolist()


def first_epoch(fingerprint="set", seed=0, epoch=0, lanes=4, window=64):
    order = Order(np.full(20, 50), fingerprint, seed, lanes, window)
    return order.samples_at(np.arange(1000) + epoch * 1000)


@pytest.mark.parametrize("change", [{"fingerprint": "other"}, {"seed": 1}, {"epoch": 1}])
def test_another_seed_epoch_or_set_gives_another_order(change):
    assert (first_epoch() == first_epoch(**change)).mean() < 0.05


def test_samples_are_shuffled_inside_a_shard_too():
    order = Order(np.array([1000]), "set", 0, window=1000)
    seen = order.samples_at(np.arange(1000))
    assert abs(np.corrcoef(seen, np.arange(1000))[0, 1]) < 0.15


def test_the_order_of_a_known_set_never_changes():
    order = Order(np.array([3, 0, 5, 2]), "fingerprint", 7, lanes=2, window=4)
    assert order.samples_at(np.arange(20)).tolist() == [
        2,
        3,
        0,
        6,
        8,
        4,
        1,
        5,
        9,
        7,
        1,
        4,
        8,
        3,
        0,
        5,
        9,
        6,
        2,
        7,
    ]


def test_a_set_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        Order(np.array([0, 0]), "set", 0)


@quick
@given(
    st.integers(1, 10**7),
    st.lists(st.integers(1, 64).map(lambda n: n * 16) | st.integers(1, 5000), min_size=1),
    st.sampled_from([64, 1024, 4096]),
)
def test_lanes_suit_the_set_and_every_batch(samples, batch_sizes, window):
    lanes = lanes_for(samples, batch_sizes, window)
    assert lanes in (1, 2, 4, 8, 16, 32, 64)
    if lanes > 1:
        assert samples // lanes >= window
        assert all(size % (2 * lanes) == 0 for size in batch_sizes)


def test_lanes_of_well_known_sets():
    assert lanes_for(1_281_167, [4096, 3072, 2048]) == 64
    assert lanes_for(50_000, [256]) == 8
    assert lanes_for(50_000, [250]) == 1
    assert lanes_for(1000, [256]) == 1


def lanes_of_ranks(lanes, size, world, batches=20):
    """The lanes that each rank reads over some batches."""
    order = Order(np.array([10**6]), "set", 0, lanes)
    edges = list(pairwise(cuts(size, world)))
    read = [set() for _ in edges]
    for position in range(0, batches * size, size):
        arranged = order.arranged(position, size) % lanes
        for rank, (begin, end) in enumerate(edges):
            read[rank] |= set(arranged[begin:end].tolist())
    return read


@quick
@given(st.integers(1, 64), st.integers(0, 6), st.sampled_from([10**5, 10**6]))
def test_ranks_own_whole_lanes_where_the_numbers_divide(times, doublings, samples):
    size = 64 * times
    lanes, world = lanes_for(samples, [size]), 2**doublings
    assume(world <= lanes)
    read = lanes_of_ranks(lanes, size, world)
    assert [len(owned) for owned in read] == [lanes // world] * world
    assert set().union(*read) == set(range(lanes))


def test_ranks_beyond_the_lanes_read_one_lane_each():
    assert [len(owned) for owned in lanes_of_ranks(lanes=4, size=256, world=16)] == [1] * 16


def test_a_window_touches_few_shards():
    order = Order(np.full(1000, 500), "set", 0, lanes=4, window=4096)
    ids = order.samples_at(np.arange(4 * 4096))
    per_lane = math.ceil(4096 / 500) + 1
    assert len(np.unique(ids // 500)) <= 4 * per_lane


def test_evaluation_goes_through_the_samples_as_they_lie():
    parts = rank_parts(InOrder(), 40, 10, 3)
    assert np.concatenate([ids for ids, _ in parts]).tolist() == list(range(40, 50))
    assert not any(epochs.any() for _, epochs in parts)


@pytest.mark.parametrize(
    ("shards", "samples", "share"),
    [(10_000, 10**7, 0.99), (100_000, 10**9, 0.0), (100_000, 10**9, 0.5)],
)
@measured(5)
def test_any_position_of_a_large_set_is_reached_at_once(shards, samples, share):
    sizes = np.full(shards, samples // shards)
    began = time.perf_counter()
    order = Order(sizes, "set", 0, lanes=64)
    ids, _ = order.part(int(share * samples), 4096, 0, 4096)
    took_s = time.perf_counter() - began
    assert len(np.unique(ids)) == 4096
    held(took_s < 2, took_s)


def test_a_billion_samples_take_little_memory():
    sizes = np.full(100_000, 10_000)
    tracemalloc.start()
    try:
        order = Order(sizes, "set", 0, lanes=64)
        for position in range(0, 64 * 4096, 4096):
            order.part(position, 4096, 0, 4096)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 300e6


def shards_of(order, ids):
    first = np.concatenate(([0], np.cumsum(order.shard_sizes)))
    return set((np.searchsorted(first, ids, side="right") - 1).tolist())


@quick
@given(orders(), st.integers(1, 64), st.integers(1, 5), st.data())
def test_upcoming_shards_hold_all_samples_that_follow(make, size, world, data):
    order = make()
    rank = data.draw(st.integers(0, world - 1))
    position = data.draw(st.integers(0, 2 * order.samples))
    lanes = order.lanes_of(position, size, *cuts(size, world)[rank : rank + 2])
    end = (position // order.samples + 2) * order.samples
    needed = np.array([p for p in range(position, end) if p % order.lanes in lanes], np.int64)
    assert shards_of(order, order.samples_at(needed)) <= set(order.upcoming(position, lanes))


def test_the_shards_of_the_windows_under_way_come_first():
    order = Order(np.full(100, 10), "one", 0, lanes=4, window=20)
    position = 4 * 25  # in the second window of each lane
    under_way = shards_of(order, order.samples_at(np.arange(4 * 20, 4 * 40)))
    upcoming = list(dict.fromkeys(order.upcoming(position, range(4))))
    assert set(upcoming[: len(under_way)]) == under_way
    assert set(upcoming) >= shards_of(order, order.samples_at(np.arange(position, 1000)))


@pytest.mark.parametrize(
    ("samples", "size", "machines", "lanes"),
    [
        (1_281_167, 4096, 8, 64),
        (1_281_167, 4096, 64, 64),
        (100_000_000, 25_600, 100, 100),
        (5_800_000_000, 64_000, 1000, 1000),
        (5_800_000_000, 64_000, 1024, 64),  # half a batch has no equal share of each lane
        (1_000_000, 25_600, 1000, 64),  # lanes would be shorter than a window
    ],
)
def test_more_machines_than_lanes_raise_the_lanes(samples, size, machines, lanes):
    assert lanes_for(samples, [size], machines=machines) == lanes


def test_each_of_a_thousand_machines_has_lanes_and_shards_of_its_own():
    machines, size = 1000, 64_000
    order = Order(np.full(200_000, 10_000), "big", 0, lanes=machines)
    position = order.samples // 2 // size * size
    shards = []
    for machine in (0, 1, 499, 999):
        part = cuts(size, machines)[machine : machine + 2]
        assert order.lanes_of(position, size, *part) == {machine}
        order.look_ahead(position, size, *part)
        shards.append(shards_of(order, order.part(position, size, *part)[0]))
    assert len(set.union(*shards)) == sum(map(len, shards))
