"""Counted randomness: the same everywhere and for ever, flat, and independent by purpose."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import chance

quick = settings(deadline=None, max_examples=50)
parts = st.lists(st.one_of(st.integers(0, 2**63), st.text(max_size=8)), min_size=1, max_size=4)


def test_mixing_is_the_published_splitmix64():
    counted = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert chance.mix(counted).tolist() == published


def test_hashes_never_change():
    assert int(chance.hash_of(0)[0]) == 0xA706DD2F4D197E6F
    assert int(chance.hash_of(7, 3, "flip")[0]) == 0x8D9FE0869EA302C9
    assert chance.hash_of("order", np.arange(3)).tolist() == [
        0xA45F657B61E3C3E8,
        0x70F1D50E810410D0,
        0x45A0B558D5D7A884,
    ]


def test_permutations_never_change():
    assert chance.permutation(10, "fingerprint", 0, 0, "shards").tolist() == [
        4,
        7,
        6,
        0,
        8,
        3,
        2,
        1,
        5,
        9,
    ]
    assert chance.permutation(10, "fingerprint", 0, 1, "shards").tolist() == [
        7,
        4,
        6,
        0,
        9,
        2,
        5,
        1,
        8,
        3,
    ]


def test_seeds_for_libraries_never_change():
    assert chance.seed_of(0, "weights") == 0x16B38E4CD0400867


@quick
@given(st.integers(0, 3000), parts)
def test_a_permutation_holds_each_number_once(size, parts):
    order = chance.permutation(size, *parts)
    assert np.array_equal(np.sort(order), np.arange(size))


@quick
@given(parts, st.lists(st.integers(0, 2**40), min_size=1, max_size=20))
def test_hashing_together_is_hashing_one_by_one(parts, numbers):
    together = chance.hash_of(*parts, np.array(numbers))
    one_by_one = [int(chance.hash_of(*parts, number)[0]) for number in numbers]
    assert together.tolist() == one_by_one


@quick
@given(parts)
def test_seeds_for_libraries_fit_in_63_bits(parts):
    assert 0 <= chance.seed_of(*parts) < 2**63


def test_the_order_of_parts_matters():
    assert chance.hash_of(1, 2) != chance.hash_of(2, 1)
    assert chance.hash_of(1) != chance.hash_of(1, 0)
    assert chance.hash_of(0) != chance.hash_of(0, 0)


@quick
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_uniform_numbers_lie_from_zero_to_below_one(keys):
    numbers = chance.uniform(np.array(keys, dtype=np.uint64))
    assert numbers.min() >= 0
    assert numbers.max() < 1


def test_the_largest_key_stays_below_one():
    ends = chance.uniform(np.array([0, 2**64 - 1], dtype=np.uint64))
    assert ends[0] == 0
    assert 0.999999 < ends[1] < 1


@pytest.mark.parametrize("seed", range(5))
def test_uniform_numbers_are_flat(seed):
    count, bins = 200_000, 100
    numbers = chance.uniform(chance.hash_of(seed, "flip", np.arange(count)))
    filled = np.histogram(numbers, bins=bins, range=(0, 1))[0]
    surprise = ((filled - count / bins) ** 2 / (count / bins)).sum()
    assert 40 < surprise < 190
    assert abs(numbers.mean() - 0.5) < 0.004


def test_every_bit_of_a_hash_is_set_half_of_the_time():
    keys = chance.hash_of(3, np.arange(100_000))
    for bit in range(64):
        assert abs(((keys >> np.uint64(bit)) & np.uint64(1)).mean() - 0.5) < 0.01


def stream(*parts):
    return chance.uniform(chance.hash_of(*parts, np.arange(50_000)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, "flip"), (0, "area")),
        ((0, "area"), (0, "aspect")),
        ((0, "shift"), (0, "place")),
        ((0, "flip"), (1, "flip")),
        ((0, 0), (0, 1)),
        ((0, 1), (1, 0)),
    ],
)
def test_purposes_seeds_and_epochs_give_independent_streams(one, other):
    correlation = np.corrcoef(stream(*one), stream(*other))[0, 1]
    assert abs(correlation) < 0.02


def test_neighbours_in_a_stream_are_independent():
    numbers = stream(0, "flip")
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.02


def test_permutations_of_neighbouring_epochs_share_no_more_than_chance():
    first, second = (chance.permutation(10_000, "set", 0, epoch) for epoch in (0, 1))
    assert (first == second).sum() < 10


def test_words_are_hashed_by_their_bytes():
    assert chance.hash_of("é") == chance.hash_of(zlib.crc32("é".encode()))


@pytest.mark.exact
@given(st.lists(st.integers(-(2**70), 2**70) | st.text(max_size=9), max_size=6))
def test_a_seed_is_the_hash_of_its_parts(parts: list[int | str]) -> None:
    assert chance.seed_of(*parts) == int(chance.hash_of(*parts)[0] >> np.uint64(1))
