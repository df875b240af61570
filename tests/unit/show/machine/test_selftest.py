"""The table of the selftest."""

from __future__ import annotations

from datetime import date

from golden import check_golden
from stoker.doctor.selftest.rows import FAILED, NOT_RUN, OK, Row
from stoker.measure.environment import Environment, Gpu
from stoker.show.machine.selftest import HEADER, line, summary

ROWS = [
    Row("machine", "a processor, 8 cores, torch 2.15.0", "none", OK, "", 0.1, {}),
    Row("loop-large-plain", "0.991 of a bare loop", "at least 0.97", OK, "", 9.0, {}),
    Row("save", "longest hold 9.0 ms", "hold at most 5 ms", FAILED, "", 3.0, {}),
    Row("nan", "", "", FAILED, "ValueError: a | b\nsecond line", 3.0, {}),
    Row("lost-killed", "", "", NOT_RUN, "needs 2 GPUs, and there is 1", 0.0, {}),
]


def environment(*gpus: Gpu) -> Environment:
    driver = "600.10" if gpus else None
    versions = {"torch": "2.15.0"}
    return Environment(versions, "a processor", 8, 8, True, 10**9, "", gpus=gpus, driver=driver)


def test_selftest_golden() -> None:
    gpu = Gpu("NVIDIA A100-SXM4-40GB", 40 * 10**9, (8, 0))
    today = date(2026, 1, 2)
    summaries = [summary(ROWS, environment(*gpus), today) for gpus in ((gpu, gpu), ())]
    check_golden("show_selftest", [*HEADER, *map(line, ROWS), *summaries])


def test_every_line_has_the_same_cells() -> None:
    assert {text.replace("\\|", "").count("|") for text in (*HEADER, *map(line, ROWS))} == {5}
    assert summary(ROWS, environment(), date(2026, 1, 2)).count("|") == 5
