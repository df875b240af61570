"""The page about a ticket study: the numbers and the verdict of the verb."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from report_pages import NOW, PageReader
from stoker.cli import main
from stoker.errors import FINISHED, BadRequest
from stoker.fleet.grid.cell import Cell, Plan
from stoker.fleet.grid.directory import Grid
from stoker.recipe.resolve import resolve
from stoker.show.report_studies.ticket_page import ticket_page
from stoker.study.recorded import is_sweep
from stoker.study.tickets.plan import TICKET, TicketDesign, TicketStudy, plan_tickets
from stoker.study.tickets.recorded import is_ticket_study, tickets_of

LAYERS = {"kept": 10, "total": 100, "layers": {"head": [10, 100]}}
WEIGHTS = {
    "quantiles": {"60": 0.1}, "largest": 1.0, "zeros": 0, "total": 100, "layers": {"head": 100},
}  # fmt: skip


def planned(replicates: int = 3, by_layer: bool = False) -> TicketStudy:
    design = TicketDesign((0.4, 0.1), (0.0, 1.0), replicates, 0.2, by_layer)
    recipes = [resolve(None, {"epochs": 4, "seed": n}).recipe for n in range(replicates)]
    return plan_tickets(recipes, design, "set", 1)


def with_results(study: TicketStudy, folder: Path, most: int = 10_000) -> Grid:
    """A grid whose cells are done: tickets are better than their controls."""
    grid = Grid(folder)
    for number, cell in enumerate(list(study.plan.cells)[:most]):
        is_ticket = cell in study.cells and study.cells[cell].kind == TICKET
        hits = (800 if is_ticket or cell in study.dense else 500) + number % 3
        result = {"top1": hits, "images": 1000, "epoch": 4.0, **LAYERS}
        result |= WEIGHTS if cell in study.dense else {}
        grid.files.create(f"cells/{cell}/result.json", json.dumps(result).encode())
    return grid


def read(study: TicketStudy, grid: Grid) -> PageReader:
    page, _ = ticket_page(study, grid, now=NOW)
    assert "could not be made" not in page and len(page) < 2_000_000
    return PageReader(page)


@pytest.mark.parametrize("by_layer", [False, True])
def test_a_recorded_plan_is_the_same_study(by_layer: bool) -> None:
    study = planned(by_layer=by_layer)
    recorded = tickets_of(study.plan)
    assert recorded.design == study.design and recorded.dense == study.dense
    for each in study.cells.values():
        place = each.kind, each.keep, each.rewind
        assert recorded.of(*place) == study.of(*place)
    assert is_ticket_study(study.plan) and not is_sweep(study.plan)


def test_numbers_and_verdict(tmp_path: Path) -> None:
    study = planned()
    reader = read(study, with_results(study, tmp_path))
    for words in (
        "Tickets win at 40 % from epoch 0: 80.",
        "unstructured sparsity does not speed up",
        "re-initialised",
        "random mask from epoch 1",
        "10 %",
        "dense",
    ):
        assert words in reader.text, words
    kinds = [one.get("class") for one in reader.named("path")]
    assert "interval s0" in kinds and "interval s1" in kinds
    shown = [svg for svg in reader.named("svg") if svg.get("aria-hidden") != "true"]
    assert len(reader.named("desc")) == len(shown) == 1


def test_what_is_no_evidence(tmp_path: Path) -> None:
    few = planned(replicates=2)
    text = read(few, with_results(few, tmp_path / "few")).text
    assert "Not evidence of a ticket: it has fewer than 3 replicates." in text
    part = planned()
    text = read(part, with_results(part, tmp_path / "part", 12)).text
    assert "Not evidence of a ticket: " in text and "cells are not done" in text
    text = read(part, Grid(tmp_path / "none")).text
    assert "no result yet" in text and "No pruned run is done yet." in text


def test_masks_by_layer_have_a_column(tmp_path: Path) -> None:
    study = planned(by_layer=True)
    assert "by layer from epoch 0" in read(study, with_results(study, tmp_path)).text


def test_the_verb_writes_it(tmp_path: Path) -> None:
    study = planned(replicates=1)
    grid = with_results(study, tmp_path)
    grid.freeze(study.plan)
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == FINISHED
    assert "<title>Ticket study of 2 levels</title>" in (tmp_path / "page.html").read_text()


def test_the_axis_of_its_picture_has_percentages(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    from stoker.show.report.png import line_figures

    study = planned()
    _, charts = ticket_page(study, with_results(study, tmp_path), now=NOW)
    ((name, figure),) = line_figures(charts)
    figure.canvas.draw()
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert name == "tickets-own" and "10" in labels and "20" in labels


def test_a_plan_that_is_no_study_is_refused() -> None:
    cells = [Cell("a", ("x",), {"do": "dense"}), Cell("b", ("x",), {"do": "ticket"})]
    with pytest.raises(BadRequest, match="no ticket study"):
        tickets_of(Plan.of(cells))
