"""As many batches ahead as fit, never more than requested, and a message where they are fewer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import check_golden
from stoker.data.loading.memory import LoaderMemory, fit_prefetch
from stoker.errors import BadRequest
from stoker.host.limits import GB

LOADERS = st.lists(
    st.builds(LoaderMemory, st.integers(0, 10**10), st.integers(1, 64), st.integers(0, 10**9)),
    min_size=1,
    max_size=3,
)


def total(loaders: list[LoaderMemory], ahead: int) -> int:
    return sum((ahead + 1) * one.batch_bytes + one.threads * one.image_bytes for one in loaders)


@settings(max_examples=200, deadline=None)
@given(LOADERS, st.integers(1, 12), st.integers(0, 10**11))
def test_the_most_that_fits(loaders: list[LoaderMemory], prefetch: int, allowed: int) -> None:
    possible = [ahead for ahead in range(1, prefetch + 1) if total(loaders, ahead) <= allowed]
    if not possible:
        with pytest.raises(BadRequest, match="--max-ram"):
            fit_prefetch(loaders, prefetch, allowed)
        return
    fits, message = fit_prefetch(loaders, prefetch, allowed)
    assert fits == max(possible)
    assert (message is None) == (fits == prefetch)
    if message is not None:
        assert f"{fits} instead of {prefetch}" in message
        assert "\n" not in message


@settings(max_examples=60, deadline=None)
@given(LOADERS, st.integers(1, 12), st.integers(0, 10**11), st.integers(0, 10**11))
def test_more_memory_never_means_fewer_batches(
    loaders: list[LoaderMemory], prefetch: int, allowed: int, more: int
) -> None:
    try:
        fits, _ = fit_prefetch(loaders, prefetch, allowed)
    except BadRequest:
        return
    assert fit_prefetch(loaders, prefetch, allowed + more)[0] >= fits


def test_messages_golden() -> None:
    with pytest.raises(BadRequest) as caught:
        fit_prefetch([LoaderMemory(3 * GB, 2, GB)], 4, 5 * GB)
    for fact in ("8.00 GB", "3.00 GB", "5.00 GB", "--batch-size"):
        assert fact in str(caught.value)
    note = fit_prefetch([LoaderMemory(GB, 2, GB)], 4, 5 * GB)[1]
    check_golden("loading_memory", [str(caught.value), str(note)])
