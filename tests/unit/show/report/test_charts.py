"""Charts: few points, true values, and pictures that hold whatever was measured."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from made_runs import RunMaker
from report_pages import NOW, PageReader, keep_evaluation
from stoker.history.usage import Usage
from stoker.show.report.blocks import (
    LEVELS,
    heat_figure,
    heat_map,
    short_name,
    time_line,
    timeline_figure,
)
from stoker.show.report.charts import (
    MOST_POINTS,
    AxisValues,
    Chart,
    ChartLine,
    PageAxis,
    as_bytes,
    as_share,
    binned,
    curve_charts,
    part_bars,
    time_unit,
    usage_charts,
    with_pauses,
)
from stoker.show.report.facts import RunFacts, facts_of
from stoker.show.report.svg import bars_figure, limits, line_figure, tick_text, ticks


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> RunFacts:
    maker = RunMaker(tmp_path_factory.mktemp("runs") / "run", steps=1500, ranks=2, gpus=True)
    run = maker.attempt(0, 900, None).attempt(700, 1500).run
    return facts_of(run, now=NOW)


def chart_of(*values: float, **changes: object) -> Chart:
    y = np.array(values, float)
    line = ChartLine("line", {"own": np.arange(len(y), dtype=float)}, y)
    texts = ("key", "Title", "What it is.", "label")
    return Chart(*texts, (PageAxis("own", "Steps"),), (line,), **changes)  # type: ignore[arg-type]


def test_the_curves_of_a_run(facts: RunFacts) -> None:
    charts = {chart.key: chart for chart in curve_charts(facts)}
    assert list(charts) == ["accuracy", "loss", "rate", "speed"]
    for chart in charts.values():
        assert [axis.key for axis in chart.axes] == ["epochs", "hours", "dollars"]
        for line in chart.series:
            assert len(line.y) <= MOST_POINTS
            assert all(len(places) == len(line.y) for places in line.x.values())
            assert all((np.diff(places) >= 0).all() for places in line.x.values())
    rate = charts["rate"].series[0]
    assert rate.y[0] == pytest.approx(0.4) and rate.y[-1] < 0.01
    assert charts["speed"].series[0].y.mean() == pytest.approx(889, rel=0.02)
    accuracy = {line.name: line for line in charts["accuracy"].series}
    assert accuracy["evaluation top-1"].x["epochs"][-1] == pytest.approx(9.5)
    assert rate.x["dollars"][-1] == pytest.approx(facts.cost.total, rel=0.01)
    assert rate.x["hours"][-1] == pytest.approx(facts.history.ledger.total_s / 60, rel=0.01)


def test_a_position_without_steps_is_at_zero() -> None:
    values = AxisValues(0, np.empty(0), np.empty(0))
    assert [axis.label for axis in values.axes] == ["Samples", "Seconds of all attempts"]
    assert values.of(np.array([5.0]))["hours"].tolist() == [0.0]


def test_neighbours_are_averaged() -> None:
    assert binned([1.0, None, 3.0]).tolist()[::2] == [1.0, 3.0]
    thin = binned([None if n % 2 else float(n) for n in range(1000)], 100)
    assert len(thin) == 100 and np.isfinite(thin).all()
    assert np.isnan(binned([None] * 1000, 10)).all()


def test_parts_of_a_step_add_up(facts: RunFacts) -> None:
    bars = part_bars(facts)
    assert bars.rows[0].label == "backward" and bars.rows[0].texts == ("144 ms", "50.0%")
    total = sum(row.value for row in bars.rows)
    assert total == pytest.approx(facts.history.ledger.training_s)
    assert len(PageReader(bars_figure(bars)).named("rect")) == len(bars.rows)


def test_a_long_step_is_told_in_seconds(facts: RunFacts) -> None:
    slow = deepcopy(facts)
    parts = slow.history.ledger.parts
    parts["backward"] = 3.88 * sum(point.count for point in slow.history.points)
    assert part_bars(slow).rows[0].texts[0] == "3.88 s"


def test_machines_are_drawn_with_their_pauses(facts: RunFacts) -> None:
    charts = {chart.key: chart for chart in usage_charts(facts)}
    assert charts["use-gpu"].series[0].y[0] == pytest.approx(0.93)
    assert np.isnan(charts["use-cpu"].series[0].y).sum() == 1
    assert not re.search("crosses at the top", line_figure(charts["use-cpu"]))
    rows = with_pauses([Usage(0.0, 1), Usage(10.0, 2), Usage(500.0, 3)])
    assert [is_pause for _, is_pause in rows] == [False, False, True, False]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.25, 0.5, 0.75, 1]), (0, 9.5, [0, 2.5, 5, 7.5]), (3, 3, [3]), (0, 1e9, 5)],
)
def test_ticks_are_round(low: float, high: float, expected: list[float] | int) -> None:
    values = ticks(low, high, 4)
    assert len(values) == expected if isinstance(expected, int) else values == expected


def test_limits_hold_the_values() -> None:
    assert limits(chart_of(0.2, 0.9, most=1.0)) == (0.0, 1.0)
    assert limits(chart_of(*[1.0] * 50, 1e9)) == (0.0, 2.0)
    low, high = limits(chart_of(5.0, 5.0, from_zero=False))
    assert low <= 5 < high
    assert limits(chart_of(np.nan, np.inf)) == (0.0, 1.0)


def test_units_of_time_and_ticks() -> None:
    assert [time_unit(s)[1] for s in (60, 600, 10_000, 1e6)] == [
        "Seconds",
        "Minutes",
        "Hours",
        "Days",
    ]
    assert tick_text(chart_of(1.0, format=as_share), 0.25, 0.25) == "25%"
    assert tick_text(chart_of(1.0, format=as_bytes), 5e8, 1e8) == "500 MB"


def test_gaps_are_drawn_as_gaps() -> None:
    page = line_figure(chart_of(1, 2, np.nan, 4, np.inf, 6, 7))
    (path,) = re.findall(r'd="(M[^"]*)" class="line s0"', page)
    assert path.count("M") == 3 and "nan" not in path
    assert "2 of 7 points are not finite" in page
    assert page.count("<circle") == 1, "a value between two gaps has a mark"
    assert "not a number" in page and "infinite" in page


def test_values_far_above_all_others_are_cut() -> None:
    assert "Values above 2 are drawn at the top" in line_figure(chart_of(*[1.0] * 50, 1e9))


def test_a_description_has_the_numbers() -> None:
    assert "line: from 1 to 7, lowest 1, highest 9." in line_figure(chart_of(1, 9, 7))


def test_attempts_are_apart_on_the_time_line(facts: RunFacts) -> None:
    line = time_line(facts)
    first, second = line.spans
    assert first.end < second.begin - 200
    assert first.redone_share == pytest.approx(200 / 900)
    assert not first.is_whole and second.is_whole
    reader = PageReader(timeline_figure(line))
    assert "Attempt 1: killed, 900 steps, 200 repeated later" in reader.text
    assert len(reader.named("rect")) == 2


@pytest.mark.parametrize("count", [2, 12, 13, 24, 25, 100])
def test_a_heat_map_has_a_cell_for_each_pair(tmp_path: Path, count: int) -> None:
    names = [f"name {number}" for number in range(count)]
    run = RunMaker(tmp_path / "run", steps=30, classes=names).attempt(0, 30).run
    keep_evaluation(run, names, images=200)
    heat = heat_map(facts_of(run, now=NOW))
    assert heat is not None and heat.counts.sum() == 200 * count
    page = heat_figure(heat)
    assert page.count("h1v1h-1z") == np.count_nonzero(heat.counts)
    assert page.count("fill-opacity") <= LEVELS
    assert (">name 1 2<" in page) == (count <= 24)
    assert len(page) < 60_000


def test_more_than_a_hundred_classes_have_no_heat_map(tmp_path: Path) -> None:
    names = [f"name {number}" for number in range(101)]
    run = RunMaker(tmp_path / "run", steps=30, classes=names).attempt(0, 30).run
    keep_evaluation(run, names)
    assert heat_map(facts_of(run, now=NOW)) is None


def test_long_names_keep_both_ends() -> None:
    assert short_name("x" * 16) == "x" * 16
    assert short_name("beginning and the end", 12) == "beginni… end"
    assert len(short_name("y" * 500, 64)) == 64
    assert short_name("a|b\n") == "a¦b\\n"
