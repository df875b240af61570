"""What a ticket study shows, from fixed numbers."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from golden import check_golden
from stoker.intervals import Mean
from stoker.show.study.ticket_chart import chart_lines
from stoker.show.study.ticket_svg import ticket_svg
from stoker.show.study.tickets import conclusion, matrix_lines, result_lines, size_lines
from stoker.study.tickets.plan import TicketDesign
from stoker.study.tickets.results import Level, TicketResults
from stoker.study.tickets.size import ModelCost, TicketSize

WEIGHTS = {
    "quantiles": {str(share): share / 1000 for share in (60, 65, 70, 75, 80, 85, 90, 95, 99)},
    "largest": 1.5,
    "zeros": 0,
    "total": 6510,
    "layers": {"features.0.weight": 54, "head.weight": 6456},
}
KEPT = {"kept": 651, "total": 6510, "layers": {"features.0.weight": [30, 54], "head": [621, 6456]}}


def mean(value: float, half: float = 0.01, count: int = 3) -> Mean:
    return Mean(value, half if count > 1 else None, count)


def study(replicates: int = 3, done: int = 40, **more: Any) -> TicketResults:
    """Tickets that win at 10 % from epoch 1 only."""
    design = TicketDesign((0.4, 0.1), (0.0, 1.0), replicates, 0.2, **more)
    few = min(replicates, 3)
    by_layer = mean(0.74, count=few) if design.by_layer else None
    levels = [
        Level(0.4, 0.0, mean(0.8, 0.02, few), mean(0.79, 0.01, few), mean(0.78, 0.01, few)),
        Level(0.4, 1.0, mean(0.81, count=few), mean(0.8, count=few), mean(0.78, count=few)),
        Level(0.1, 0.0, mean(0.7, count=few), mean(0.65, count=few), mean(0.69, count=few)),
        Level(0.1, 1.0, mean(0.75, count=few), mean(0.68, count=few), mean(0.69, count=few)),
    ]
    levels = [Level(**{**vars(level), "by_layer": by_layer}) for level in levels]
    dense = mean(0.82, 0.005, few)
    return TicketResults(design, dense, levels, WEIGHTS, {0.1: KEPT}, 40, done)


SIZE = TicketSize(
    *("tickets/set-mine/cells/0123/work/run", 0.1, 0.0, 5859, 6800),
    ModelCost(27_000, 24_900, 1234.5),
    ModelCost(27_000, 4_100, 1240.1),
    *(1.0, "cpu"),
)


def test_golden_texts() -> None:
    faster = TicketSize(**{**vars(SIZE), "speedup": 1.7, "device": "cuda"})
    nothing = TicketResults(study().design, None, [], {}, {}, 40, 0)
    check_golden(
        "show_tickets",
        [
            *result_lines(study(), layers=True),
            "",
            *result_lines(study(replicates=2, done=39, by_layer=True)),
            "",
            *size_lines(SIZE),
            *size_lines(faster)[-1:],
            *result_lines(nothing),
        ],
    )


def test_no_line_is_longer_than_a_terminal() -> None:
    rewinds = tuple(map(float, range(7)))
    levels = [
        Level(keep / 1000, rewind, mean(0.5), mean(0.4), mean(0.3))
        for keep in range(200, 0, -10)
        for rewind in rewinds
    ]
    keeps = tuple(keep / 1000 for keep in range(200, 0, -10))
    design = TicketDesign(keeps, rewinds, 3)
    results = TicketResults(design, mean(0.6), levels, {}, {}, 1, 1)
    for line in [*matrix_lines(results), *chart_lines(results)]:
        assert len(line) <= 80, line


class TestEvidence:
    def test_a_win_is_above_both_controls(self) -> None:
        wins = study().wins
        assert [(level.keep, level.rewind) for level in wins] == [(0.1, 1.0)]
        assert "*" in matrix_lines(study())[4]

    @pytest.mark.parametrize("missing", ["ticket", "random", "reinit"])
    def test_nothing_wins_without_its_controls(self, missing: str) -> None:
        whole = study().levels[3]
        assert whole.wins(3)
        assert not Level(**{**vars(whole), missing: None}).wins(3)
        assert not Level(**{**vars(whole), missing: mean(0.1, count=2)}).wins(3)

    def test_nothing_wins_with_two_replicates(self) -> None:
        two = study(replicates=2)
        assert not two.wins
        assert conclusion(two)[0].startswith("not evidence of a ticket: it has fewer than 3")

    def test_a_win_in_an_unfinished_study_is_not_announced(self) -> None:
        lines = conclusion(study(done=39))
        assert lines == ["not evidence of a ticket: 1 of 40 cells are not done"]

    def test_no_win_is_said_plainly(self) -> None:
        poor = study()
        poor.levels.pop()
        assert conclusion(poor)[0].startswith("no ticket here")


class TestPicture:
    def test_it_is_xml_that_needs_nothing_else(self) -> None:
        text = ticket_svg(study(), "photos, resnet9")
        root = ET.fromstring(text)
        names = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert names <= {
            *("svg", "title", "desc", "style", "rect", "text", "path", "g", "polyline", "circle")
        }
        assert "href" not in text and "url(" not in text and "@import" not in text
        assert "prefers-color-scheme:dark" in text
        assert root.get("role") == "img"
        words = root.findtext("{http://www.w3.org/2000/svg}desc") or ""
        assert "10 % kept, from epoch 1: ticket 75.0 %, random mask 68.0 %" in words

    @pytest.mark.parametrize("title", ["<script>x</script>", 'a"b&c', "\x1b[31m\n\u202e", "\ud800"])
    def test_names_cannot_break_it(self, title: str) -> None:
        root = ET.fromstring(ticket_svg(study(), title).encode())
        assert not list(root.iter("{http://www.w3.org/2000/svg}script"))

    def test_everything_is_inside(self) -> None:
        root = ET.fromstring(ticket_svg(study(), "x"))
        for circle in root.iter("{http://www.w3.org/2000/svg}circle"):
            assert 0 < float(circle.get("cx") or 0) < 720
            assert 40 < float(circle.get("cy") or 0) < 320

    def test_nothing_is_drawn_of_nothing(self) -> None:
        design = study().design
        assert ticket_svg(TicketResults(design, mean(0.5), [], {}, {}, 4, 1), "x") == ""
