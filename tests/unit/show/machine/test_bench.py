"""The last lines name what limits the loader and the first epoch, and claim nothing unmeasured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from golden import check_golden
from stoker.measure.trials.loading import STAGES, LoadingSpeed, Pass, Setting
from stoker.show.machine.bench import closing, header, line, opening


def speed(read_cold: float, read_warm: float, decode: float, cached: float = 0.0) -> LoadingSpeed:
    rates = (10**5, decode, read_cold, read_warm, min(read_cold, decode), min(read_warm, decode))
    stages = [Pass(1000, 10**6, 1000 / rate, 1.0, cached) for rate in rates]
    passes = dict(zip(STAGES, stages, strict=True))
    return LoadingSpeed(Setting(), 2, "jpeg", 1000, 10**7, 10**9, 1, 1, passes)


CASES = {
    "reading limits the first epoch": speed(500, 50000, 1000),
    "a fast disk": speed(5000, 50000, 1000),
    "a set larger than memory": replace(speed(500, 50000, 1000), bytes=2 * 10**9),
    "reading limits every epoch": speed(500, 800, 1000),
    "shards that stay in the page cache": speed(500, 800, 1000, cached=1.0),
}


def test_sentences_golden() -> None:
    case = CASES["reading limits the first epoch"]
    lines = [opening(case), header(), *(line(*stage) for stage in case.passes.items())]
    for name, case in CASES.items():
        lines += [f"# {name}", *closing(case)]
    check_golden("bench_sentences", lines)


def test_the_multiples_are_measured() -> None:
    limit, first = closing(CASES["reading limits the first epoch"])
    assert "50 times" in limit and "2.0 times" in first
    limit, _ = closing(CASES["reading limits every epoch"])
    assert limit.startswith("Reading") and "1.2 times" in limit


def test_a_fast_disk_makes_no_difference() -> None:
    _, first = closing(CASES["a fast disk"])
    assert "decoding" in first and "times" not in first


def test_a_set_larger_than_memory_never_gets_warm() -> None:
    _, first = closing(CASES["a set larger than memory"])
    assert "every epoch" in first and "2.0 GB" in first and "1.0 GB" in first


@pytest.mark.parametrize("cached", [1.0, 0.2])
def test_what_was_not_cold_claims_no_first_epoch(cached: float) -> None:
    _, first = closing(speed(500, 800, 1000, cached))
    assert "not cold" in first and "times" not in first
