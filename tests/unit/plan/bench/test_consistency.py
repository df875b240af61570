"""Figures that contradict each other are named with the right one; others are left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_results import row
from stoker.plan.bench.consistency import (
    dollar_contradiction,
    epoch_contradiction,
    precision_notes,
    speedup_notes,
)

FIGURE = st.floats(1e-3, 1e6)


def test_a_published_rate_and_epoch_that_disagree() -> None:
    """A hand-made comparison says 15,000 images/s and 45 s an epoch of ImageNet."""
    words = epoch_contradiction(15_000, 45, 1_281_167)
    assert "15,000 images/s" in words and "45 s" in words
    assert "85.41 s" in words


def test_a_published_price_that_agrees() -> None:
    assert dollar_contradiction(11.0, 45 * 60, 8.25) == ""
    assert "$8.25" in dollar_contradiction(11.0, 45 * 60, 7.5)


@given(FIGURE, st.integers(1, 10**9))
def test_what_follows_agrees(images_per_s: float, images: int) -> None:
    epoch_s = images / images_per_s
    assert epoch_contradiction(images_per_s, epoch_s, images) == ""
    assert epoch_contradiction(images_per_s, float(f"{epoch_s:.3g}"), images) == ""
    assert epoch_contradiction(images_per_s, epoch_s * 1.02, images) != ""


@given(FIGURE, FIGURE, st.floats(1.01, 100))
def test_other_dollars_disagree(price: float, seconds: float, factor: float) -> None:
    right = price * seconds / 3600
    assert dollar_contradiction(price, seconds, right) == ""
    assert dollar_contradiction(price, seconds, right * factor) != ""


@pytest.mark.parametrize(("rate", "noted"), [(200.0, False), (208.0, False), (240.0, True)])
def test_more_speed_than_ranks_is_noted(rate: float, noted: bool) -> None:
    rows = [row(100.0), row(rate, ranks=2)]
    assert bool(speedup_notes(rows)) is noted


def test_ranks_are_compared_with_one_rank_of_their_share() -> None:
    assert speedup_notes([row(100.0, batch_size=32), row(240.0, ranks=2)])
    assert not speedup_notes([row(100.0, batch_size=8), row(240.0, ranks=2)])
    assert not speedup_notes([row(100.0, precision="bf16"), row(240.0, ranks=2)])


def test_a_precision_that_is_slower_is_named() -> None:
    (note,) = precision_notes([row(100.0), row(50.0, precision="bf16")])
    assert "2 times as slow as fp32" in note
    (note,) = precision_notes([row(100.0), row(100.5, precision="bf16")])
    assert "no faster than fp32" in note
    assert not precision_notes([row(100.0), row(150.0, precision="bf16")])
    assert not precision_notes([row(100.0, count=4), row(50.0, count=4, precision="bf16")])
    assert not precision_notes([row(100.0, batch_size=8), row(50.0, precision="bf16")])
