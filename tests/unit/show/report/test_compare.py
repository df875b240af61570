"""The page that compares runs: well-formed, complete, closed to the outside, and quick."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from made_runs import RunMaker
from report_pages import HOSTILE, NOW, PageReader, change_record, hostile_run
from stoker.run.directory import Run
from stoker.show.report.compare import (
    MOST_DRAWN,
    compared_runs,
    comparison_charts,
    comparison_page,
    drawn_runs,
    unique_names,
)


def made_run(path: Path, steps: int = 100, **options: object) -> Path:
    return RunMaker(path, steps=steps, **options).attempt(0, steps).run.path  # type: ignore[arg-type]


def page_of(*paths: Path, left_out: int = 0) -> str:
    page = comparison_page(compared_runs(paths, now=NOW), now=NOW, left_out=left_out)
    assert "could not be made" not in page, page[page.index("could not be made") :][:200]
    for _, attributes in PageReader(page).elements:
        assert not [name for name in attributes if name in ("src", "style") or name[:2] == "on"]
    return page


def rows_of(reader: PageReader, page: str) -> list[str]:
    (table,) = re.findall(r'<table class="sortable">.*?</table>', page, re.DOTALL)
    return re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)[1:]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    first = made_run(folder / "first", 400)
    second = made_run(folder / "second", 400, epochs=20, step_s=0.5, model="resnet50")
    return first, second


class TestTwoRuns:
    def test_headings_ids_and_links_are_in_order(self, pair: tuple[Path, Path]) -> None:
        reader = PageReader(page_of(*pair))
        levels = [int(name[1]) for name, _ in reader.elements if re.fullmatch(r"h[1-6]", name)]
        assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))
        ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        assert {link["href"] for link in reader.named("a")} <= {f"#{name}" for name in ids}

    def test_pictures_have_a_title_a_description_and_a_table(self, pair: tuple[Path, Path]) -> None:
        reader = PageReader(page_of(*pair))
        shown = [svg for svg in reader.named("svg") if svg.get("aria-hidden") != "true"]
        assert len(shown) == 4 * 3 + 1
        assert len(reader.named("desc")) == len(shown) == len(reader.named("title")) - 1
        assert len(reader.named("details")) == len(reader.named("figure")) == 5

    def test_the_table_has_every_number(self, pair: tuple[Path, Path]) -> None:
        page = page_of(*pair)
        text = PageReader(page).text
        for words in ("first", "resnet50", "finished", "80.62%", "77.7% to 83.2%", "20 of 20"):
            assert words in text, words
        assert len(rows_of(PageReader(page), page)) == 2
        assert re.search(r'<td class="n" data-key="[\d.]+">\$', page), "dollars sort as numbers"

    def test_what_differs_and_what_came_of_it(self, pair: tuple[Path, Path]) -> None:
        text = PageReader(page_of(*pair)).text
        assert "Settings that differ" in text and "from first to second" in text
        assert "points, 95% interval" in text and "images a second" in text
        assert "dollars an epoch" in text and "time an epoch" in text

    def test_the_axes_can_be_chosen(self, pair: tuple[Path, Path]) -> None:
        reader = PageReader(page_of(*pair))
        radios = [one["id"] for one in reader.named("input")]
        assert radios == ["axis-epochs", "axis-hours", "axis-dollars"]

    def test_time_is_in_one_unit(self, pair: tuple[Path, Path]) -> None:
        runs = compared_runs(pair, now=NOW)
        chart = comparison_charts(runs)[0]
        assert chart.axes[1].label == "Minutes of all attempts"
        ends = [float(line.x["hours"][-1]) for line in chart.series]
        assert 1 < ends[0] < ends[1] < 10

    def test_equal_runs_have_no_difference(self, pair: tuple[Path, Path]) -> None:
        text = PageReader(page_of(pair[0], pair[0])).text
        assert "No setting differs." in text
        assert "first (1)" in text and "first (2)" in text


class TestRunsInAnyState:
    def test_a_run_that_cannot_be_read_is_a_row_with_its_reason(
        self, pair: tuple[Path, Path], tmp_path: Path
    ) -> None:
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "run.json").write_text("{]")
        page = page_of(pair[0], tmp_path / "broken", tmp_path / "missing")
        rows = rows_of(PageReader(page), page)
        assert len(rows) == 3
        assert "unreadable: run.json is damaged" in rows[1] and "unreadable: " in rows[2]
        assert {row.count("<td") for row in rows} == {11}, "the script sorts every column"
        assert "Fewer than two runs can be read." in page

    def test_a_run_without_evaluations_keeps_the_colours_of_the_others(
        self, pair: tuple[Path, Path], tmp_path: Path
    ) -> None:
        short = RunMaker(tmp_path / "short", steps=400).attempt(0, 15, None).run.path
        runs = compared_runs([short, *pair], now=NOW)
        assert runs[0].best is None
        charts = comparison_charts(drawn_runs(runs))
        assert {tuple(line.name for line in chart.series) for chart in charts} == {
            ("short", "first", "second")
        }
        page_of(short, *pair)

    def test_new_runs_have_a_page(self, tmp_path: Path) -> None:
        paths = [RunMaker(tmp_path / name).run.path for name in "ab"]
        text = PageReader(page_of(*paths)).text
        assert "There are no curves" in text and "no time is on record" in text

    def test_a_loss_that_is_not_a_number_is_a_gap(self, tmp_path: Path) -> None:
        paths = [made_run(tmp_path / name) for name in "ab"]
        file = Run(paths[0]).events_path(1, 0)
        file.with_suffix(".summary.jsonl").unlink()
        file.write_text(re.sub(r'"sums": \[[^,]*', '"sums": [NaN', file.read_text()))
        page = page_of(*paths)
        assert "a: " in page and "are not finite" in page
        assert not re.search(r'd="[^"]*(nan|inf)', page)

    def test_a_run_without_a_price_has_no_place_on_the_axis_of_dollars(
        self, pair: tuple[Path, Path], tmp_path: Path
    ) -> None:
        free = made_run(tmp_path / "free", dollars_per_h=None)
        runs = compared_runs([pair[0], free], now=NOW)
        chart = comparison_charts(runs)[0]
        assert [("dollars" in line.x) for line in chart.series] == [True, False]
        page_of(pair[0], free)

    def test_hostile_texts_are_escaped(self, tmp_path: Path) -> None:
        runs = [hostile_run(tmp_path / name) for name in ("<script>x</script>", "b")]
        change_record(runs[1], fingerprint="beef", recipe="other", data=f"/other/{HOSTILE}")
        page = page_of(*(run.path for run in runs))
        reader = PageReader(page)
        assert len(reader.named("script")) == 1 and not reader.named("img")
        assert "\x1b" not in page and "\u202e" not in page


class TestManyRuns:
    def test_sixty_runs(self, tmp_path: Path) -> None:
        first = made_run(tmp_path / "run0", 400)
        paths = [tmp_path / f"run{number}" for number in range(60)]
        for path in paths[1:]:
            shutil.copytree(first, path)
        runs = compared_runs(paths, now=NOW)
        assert len(drawn_runs(runs)) == MOST_DRAWN
        page = page_of(*paths, left_out=7)
        assert len(page) < 2_000_000
        reader = PageReader(page)
        assert "12 of 60 runs with curves are drawn" in reader.text
        assert "7 other runs" in reader.text
        assert len(rows_of(reader, page)) == 60
        kinds = {attributes.get("class") for attributes in reader.named("path")}
        assert "line s11" in kinds and "line s12" not in kinds

    def test_the_best_are_drawn_in_the_order_of_the_table(self, tmp_path: Path) -> None:
        poor = RunMaker(tmp_path / "poor", steps=400).attempt(0, 41).run.path
        good = [made_run(tmp_path / f"run{number}", 40) for number in range(MOST_DRAWN)]
        drawn = drawn_runs(compared_runs([poor, *good], now=NOW))
        assert [run.path for run in drawn] == good

    def test_five_runs_share_a_column_of_differences(self, tmp_path: Path) -> None:
        paths = [made_run(tmp_path / f"r{n}", 40, epochs=5 + (n > 2)) for n in range(5)]
        text = PageReader(page_of(*paths)).text
        assert "5: r0, r1, r2; 6: r3, r4" in text


def test_names_are_unique() -> None:
    paths = [Path("x/run"), Path("y/run"), Path("z/other"), Path("x/run")]
    assert unique_names(paths) == ["x/run (1)", "y/run", "other", "x/run (2)"]


def test_nothing_is_written_into_the_runs(pair: tuple[Path, Path]) -> None:
    before = [sorted(path.rglob("*")) for path in pair]
    page_of(*pair)
    assert [sorted(path.rglob("*")) for path in pair] == before
    assert Run(pair[0]).exists
