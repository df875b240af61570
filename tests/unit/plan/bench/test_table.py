"""The table of several machines: what is compared, and the frontier."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_results import failed, result, row, seed_table
from stoker.plan.bench.reproduce import DIFFERS, HOLDS, UNKNOWN, Reproduction, reproductions
from stoker.plan.bench.rows import BenchRow, differs
from stoker.plan.bench.table import letter_of, on_frontier, table_of

POINT = st.tuples(st.integers(1, 9).map(float), st.integers(1, 9).map(float))


def compared(*rows: BenchRow) -> list[str]:
    return [one.compared for one in table_of([result(one) for one in rows]).rows]


def test_rows_differ_only_where_intervals_part() -> None:
    assert compared(row(100.0), row(120.0)) == ["-17%", "fastest"]
    assert compared(row(100.0), row(102.0)) == ["same", "highest"]
    assert compared(row(100.0, count=4), row(120.0)) == ["?", "highest"]


def test_other_jobs_are_not_compared() -> None:
    base = row(100.0)
    for other in (
        row(200.0, batch_size=8),
        row(200.0, precision="bf16"),
        row(200.0, image_size=32),
        row(200.0, model="resnet50"),
        failed("crashed", "why"),
    ):
        assert compared(base, other) == ["", ""]
    recipes = {"resnet18": {**result().recipes["resnet18"], "ema": True}}
    results = [result(base), result(row(200.0), recipes=recipes)]
    assert [one.compared for one in table_of(results).rows] == ["", ""]
    another_set = replace(result().data, fingerprint="another")
    results = [result(base), result(row(200.0), data=another_set)]
    assert [one.compared for one in table_of(results).rows] == ["", ""]


def test_the_frontier_has_what_nothing_beats() -> None:
    table = table_of(seed_table())
    best = [(one.letter, one.row.cell.batch_size, one.row.cell.ranks) for one in table.rows]
    assert [name for name, one in zip(best, table.rows, strict=True) if one.on_frontier] == [
        ("A", 32, 4),
        ("B", 32, 1),
    ]


@given(st.lists(POINT, min_size=1, max_size=12))
def test_every_other_point_is_beaten_by_one_of_the_frontier(
    points: list[tuple[float, float]],
) -> None:
    kept = on_frontier(points)
    best = [point for point, is_best in zip(points, kept, strict=True) if is_best]
    assert best
    for point, is_best in zip(points, kept, strict=True):
        beaten = any(a <= point[0] and b <= point[1] and (a, b) != point for a, b in best)
        assert beaten != is_best


def test_points_without_a_price_are_not_on_the_frontier() -> None:
    assert on_frontier([(1.0, None), (None, None), (2.0, 3.0)]) == [False, False, True]


def test_notes_name_what_needs_an_explanation() -> None:
    (note,) = table_of(seed_table()).notes
    assert note.startswith("A: resnet18 224 px batch 32 bf16")


@pytest.mark.parametrize(("number", "letter"), [(0, "A"), (25, "Z"), (26, "AA"), (27, "AB")])
def test_letters(number: int, letter: str) -> None:
    assert letter_of(number) == letter


@given(st.floats(1, 1e4), st.floats(1, 1e4))
def test_a_row_never_differs_from_itself_and_differing_is_mutual(one: float, other: float) -> None:
    first, second = row(one), row(other)
    assert differs(first, first) is False
    assert differs(first, second) == differs(second, first)


@pytest.mark.parametrize(
    ("before", "now", "answer"),
    [
        (row(100.0), row(101.0), HOLDS),
        (row(100.0), row(130.0), DIFFERS),
        (row(100.0), row(130.0, count=3), UNKNOWN),
        (row(100.0), failed("crashed", "why"), DIFFERS),
        (failed("crashed", "why"), failed("crashed", "another"), HOLDS),
        (failed("crashed", "why"), failed("timed out", "late"), DIFFERS),
    ],
)
def test_a_row_holds_where_intervals_overlap(before: BenchRow, now: BenchRow, answer: str) -> None:
    assert Reproduction(before, now).answer == answer
    (one,) = reproductions(result(before), result(now))
    assert one.answer == answer
