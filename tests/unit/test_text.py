"""Numbers as people read them."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.run.evaluation import EvaluationReport
from stoker.show.use.evaluate import class_table
from stoker.text import (
    FORMULAS,
    bar,
    clock,
    harmless_cell,
    plain_cell,
    plural,
    rough,
    size,
    sparkline,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (0, "0 s"),
        (0.4, "0 s"),
        (12, "12 s"),
        (59.4, "59 s"),
        (59.6, "1:00"),
        (60, "1:00"),
        (187, "3:07"),
        (3599.4, "59:59"),
        (3599.6, "1:00:00"),
        (3723, "1:02:03"),
        (86399, "23:59:59"),
        (86400, "1 d 00:00"),
        (2 * 86400 + 3 * 3600 + 4 * 60 + 59, "2 d 03:04"),
        (400 * 86400, "400 d 00:00"),
    ],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.123, 2, "0.12"),
        (2.0, 2, "2"),
        (2.18, 2, "2.2"),
        (128.4, 2, "130"),
        (3880, 3, "3,880"),
        (1.23456e9, 3, "1,230,000,000"),
        (0, 2, "0"),
    ],
)
def test_rough(value: float, digits: int, text: str) -> None:
    assert rough(value, digits) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1234, "1.2 kB"),
        (1_200_000, "1.2 MB"),
        (999_999, "1.0 MB"),
        (3_400_000_000, "3.4 GB"),
        (5_000_000_000_000, "5000.0 GB"),
    ],
)
def test_size(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("count", "word", "text"),
    [
        (0, "image", "0 images"),
        (1, "image", "1 image"),
        (2000, "image", "2,000 images"),
        (1, "class", "1 class"),
        (3, "class", "3 classes"),
        (1_281_167, "sample", "1,281,167 samples"),
        (1.0, "epoch", "1 epoch"),
        (0.5, "epoch", "0.5 epochs"),
        (1e6, "hour", "1,000,000 hours"),
    ],
)
def test_plural(count: float, word: str, text: str) -> None:
    assert plural(count, word) == text


@pytest.mark.parametrize(
    ("share", "blocks"), [(0, 0), (0.01, 0), (0.25, 6), (0.5, 12), (0.99, 24), (1, 24)]
)
def test_bar(share: float, blocks: int) -> None:
    assert bar(share) == "█" * blocks


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([0.7], "▁"),
        ([0.7, 0.7, 0.7], "▁▁▁"),
        ([0, 1], "▁█"),
        ([1, 0], "█▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([-1, 0, 1], "▁▄█"),
    ],
)
def test_sparkline(values: list[float], line: str) -> None:
    assert sparkline(values) == line


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    line = sparkline([number / 1000 for number in range(1000)])
    assert len(line) == 48
    assert (line[0], line[-1]) == ("▁", "█")
    assert list(line) == sorted(line)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_any_curve_fits_on_a_line(values: list[float]) -> None:
    line = sparkline(values)
    assert len(line) == min(len(values), 48)
    assert set(line) <= set("▁▂▃▄▅▆▇█")


@pytest.mark.parametrize("form", ["{}1+1", " {}1+1"])
@pytest.mark.parametrize("sign", FORMULAS)
def test_no_cell_of_any_csv_is_a_formula(form: str, sign: str) -> None:
    """Also in the tables of classes and machines, which anyone may have named."""
    name = form.format(sign)
    assert plain_cell(name) == harmless_cell(name) == f"'{name}"
    report = EvaluationReport("val", 2, 1, 1, 0.5, [name], [(2, 1, 1)], [], 0, 0, None, [])
    assert list(csv.reader(class_table(report).splitlines()))[1][0] == f"'{name}"


def test_other_cells_stay_as_they_are() -> None:
    for name in ("a=b", "photo-1.jpg", "Straße", "", "'quoted'"):
        assert plain_cell(name) == harmless_cell(name) == name
    assert harmless_cell(-1.5) == -1.5
