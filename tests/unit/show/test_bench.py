"""The closing words say what binds and what the first epoch means, and claim nothing unseen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.measure.trials.loading import STAGES, LoadingSpeed, Pass, Setting
from stoker.show.bench import closing


def feeding(read_cold: float, read_warm: float, decode: float, share: float = 0.0) -> LoadingSpeed:
    rates = (10**5, decode, read_cold, read_warm, min(read_cold, decode), min(read_warm, decode))
    rows = [Pass(1000, 10**6, 1000 / rate, 1.0, share) for rate in rates]
    passes = dict(zip(STAGES, rows, strict=True))
    return LoadingSpeed(Setting(), 2, "jpeg", 1000, 10**7, 10**9, 1, 1, passes)


def test_reading_binds_the_first_epoch() -> None:
    binds, first = closing(feeding(500, 50000, 1000))
    assert binds == (
        "Decoding binds the loader once the shards are in memory: reading them could give "
        "50 times as many images."
    )
    assert first == (
        "From the disk reading binds it: an epoch takes 2.0 times as long as one from memory. "
        "That is the first epoch; later ones find the shards in the page cache."
    )


def test_a_quick_disk_is_no_difference() -> None:
    _, first = closing(feeding(5000, 50000, 1000))
    assert "From the disk decoding binds it: an epoch takes as long as one from memory." in first


def test_a_set_larger_than_memory_never_gets_warm() -> None:
    _, first = closing(replace(feeding(500, 50000, 1000), bytes=2 * 10**9))
    assert first.endswith("is larger than the memory (1.0 GB): every epoch will be like that.")


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_what_was_not_cold_says_so(share: float) -> None:
    _, first = closing(feeding(500, 800, 1000, share))
    assert "could not be dropped" in first and "times as long" not in first


def test_reading_that_is_slower_than_decoding_even_from_memory() -> None:
    binds, _ = closing(feeding(500, 800, 1000))
    assert binds.startswith("Reading binds the loader even from memory: decoding could give 1.2 ")
