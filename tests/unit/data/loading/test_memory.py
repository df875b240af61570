"""As many batches ahead as fit, never more than asked for, and words where they are fewer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.data.loading.memory import GB, SHARE, Need, fitted, packing_workers, room_of
from stoker.errors import BadRequest

NEEDS = st.lists(
    st.builds(Need, st.integers(0, 10**10), st.integers(1, 64), st.integers(0, 10**9)),
    min_size=1,
    max_size=3,
)


def total(needs: list[Need], ahead: int) -> int:
    return sum((ahead + 1) * need.batch_bytes + need.threads * need.image_bytes for need in needs)


@settings(max_examples=200, deadline=None)
@given(NEEDS, st.integers(1, 12), st.integers(0, 10**11))
def test_the_most_that_fits(needs: list[Need], prefetch: int, room: int) -> None:
    possible = [ahead for ahead in range(1, prefetch + 1) if total(needs, ahead) <= room]
    if not possible:
        with pytest.raises(BadRequest, match="--max-ram"):
            fitted(needs, prefetch, room)
        return
    fits, words = fitted(needs, prefetch, room)
    assert fits == max(possible)
    assert (words is None) == (fits == prefetch)
    if words is not None:
        assert f"{fits} instead of {prefetch}" in words
        assert "\n" not in words


@settings(max_examples=60, deadline=None)
@given(NEEDS, st.integers(1, 12), st.integers(0, 10**11), st.integers(0, 10**11))
def test_more_room_is_never_worse(needs: list[Need], prefetch: int, room: int, more: int) -> None:
    try:
        fits, _ = fitted(needs, prefetch, room)
    except BadRequest:
        return
    assert fitted(needs, prefetch, room + more)[0] >= fits


def test_the_refusal_says_what_is_needed_and_what_there_is() -> None:
    with pytest.raises(BadRequest) as caught:
        fitted([Need(3 * GB, 2, GB)], 4, 5 * GB)
    for words in ("8.00 GB", "3.00 GB a batch", "5.00 GB are allowed", "--batch-size"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("max_ram", "memory", "ranks", "room"),
    [
        (0.0, 64 * GB, 1, int(64 * GB * SHARE)),
        (0.0, 64 * GB, 8, int(64 * GB * SHARE / 8)),
        (10.0, 64 * GB, 1, 10 * GB),
        (10.0, 64 * GB, 4, 10 * GB // 4),
        (100.0, 64 * GB, 1, 100 * GB),
    ],
)
def test_room_is_shared_by_the_ranks_of_a_machine(
    max_ram: float, memory: int, ranks: int, room: int
) -> None:
    assert room_of(max_ram, memory, ranks) == room


class TestPacking:
    def test_workers_are_as_many_as_cores_where_memory_allows(self) -> None:
        assert packing_workers(0, 24 * GB, 2) == 2
        assert packing_workers(0, 24 * GB, 64) == 47
        assert packing_workers(8, GB, 16) == 16

    def test_fewer_where_it_does_not(self) -> None:
        assert packing_workers(1, 24 * GB, 16) == 3
        assert packing_workers(0, GB // 4, 16) == 1

    def test_a_limit_that_fits_nothing_is_refused(self) -> None:
        with pytest.raises(BadRequest, match=r"at least 0\.5 GB: raise --max-ram"):
            packing_workers(0.3, 24 * GB, 2)
