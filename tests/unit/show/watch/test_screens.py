"""Whole screens, at the sizes of small and large terminals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from rich.text import Text

from golden import check_golden
from made_runs import RunMaker
from stoker.run.events import Events
from stoker.show.watch.layout import card_screen, footer, full_screen, help_screen, placed
from stoker.show.watch.panels import BAR, Section
from stoker.show.watch.screen_data import AXES, PARTS, WatchedRun
from stoker.show.watch.watcher import RunWatcher

SIZES = [(80, 24), (160, 50), (80, 50), (100, 30), (40, 12), (20, 5), (300, 90), (120, 24)]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def living(path: str = "runs/photos") -> WatchedRun:
    """A run on its second attempt, with GPUs, ranks and an incident, soon after its last step."""
    maker = RunMaker(Path(path), steps=2000, ranks=2, gpus=True)
    maker.attempt(0, 1200, None).attempt(1000, 1500, None)
    with mock.patch("stoker.run.events.time", maker.clock):
        events = Events(maker.run.events_path(2, 0))
        events.write("stall", words="no step for 60 s: rank 1 reads slowly")
        events.close()
    return RunWatcher(maker.run.path).look(maker.clock.now + 5)


def ended(path: str = "runs/older") -> WatchedRun:
    maker = RunMaker(Path(path), steps=300, dollars_per_h=None).attempt(0, 300)
    return RunWatcher(maker.run.path).look(maker.clock.now + 7200)


def plain(lines: list[Text]) -> list[str]:
    return [line.plain.rstrip() for line in lines]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
def test_golden_screens(width: int, height: int) -> None:
    lines = full_screen(living(), width, height - 1, "step")
    lines += [Text()] * (height - 1 - len(lines)) + [footer(width, "step", several=False)]
    check_golden(f"watch_{width}", plain(lines))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
def test_golden_cards(width: int, height: int) -> None:
    runs = [living(), ended(), replace(ended("runs/gone"), notice="it was removed", state="gone")]
    lines = card_screen(runs, 1, width, height - 1, "epoch")
    lines += [Text()] * (height - 1 - len(lines))
    lines.append(footer(width, "epoch", several=True, note="newest 12 of 30"))
    check_golden(f"watch_cards_{width}", plain(lines))


def test_golden_help() -> None:
    check_golden("watch_help", plain(help_screen(80, 23)))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_no_screen_is_larger_than_the_terminal(width: int, height: int) -> None:
    runs = [living(), ended()]
    for axis in AXES:
        screens = [
            full_screen(runs[0], width, height, axis),
            full_screen(runs[1], width, height, axis),
            *(card_screen(runs * many, many, width, height, axis) for many in (1, 6)),
            help_screen(width, height),
        ]
        for lines in screens:
            assert len(lines) <= height
            assert {line.cell_len for line in lines} == {width}


@pytest.mark.parametrize(("width", "height"), [(80, 23), (160, 49), (None, None)])
def test_nothing_essential_is_lost(width: int | None, height: int | None) -> None:
    lines = plain(full_screen(living(), width or 80, height, "step"))
    text = "\n".join(lines)
    labels = ("speed", "step  ", "verdict", "money", "checkpoint", "machine", "incidents")
    for label in labels:
        assert f"\n{label}" in text or f"  {label}" in text, label
    for words in ("runs/photos  resnet18 on photos", "running  attempt 2", "ends in", "top-1"):
        assert words in text
    assert "training loss" in text and "░ optimiser 5%" in text and "so far" in text


def test_a_low_screen_loses_the_last_sections_first() -> None:
    sections = [Section([Text(name * 3)] * 3, least=1) for name in "abc"]
    assert [line.plain[0] for line in placed(sections, 2)] == ["a", "b"]
    assert [line.plain[0] for line in placed(sections, 5)] == ["a", "a", "a", "b", "c"]
    assert placed(sections, 5)[2].plain == "aaa" and placed(sections, 4)[1].plain == "aaa …"
    assert len(placed(sections, 100, gap=True)) == 11


def test_the_selected_card_is_always_shown() -> None:
    run = ended()
    runs = [replace(run, name=f"run-{number}-") for number in range(12)]
    for selected in range(12):
        text = "\n".join(plain(card_screen(runs, selected, 80, 23, "step")))
        assert f"▶{selected + 1} run-{selected}-" in text


def test_every_part_of_a_step_is_drawn_in_its_own_way() -> None:
    assert {*BAR} == {*PARTS, "other"}
    assert len({glyph for glyph, _ in BAR.values()}) == len(BAR)


def test_a_run_that_has_not_trained_shows_only_what_is_known() -> None:
    run = RunWatcher(RunMaker(Path("new"), steps=10).run.path).look(0.0)
    assert plain(full_screen(run, 60, 20, "step")) == [f"new  resnet18 on photos{'new':>37}"]
    assert plain(card_screen([run, run], 0, 60, 20, "step"))[1] == "resnet18 on photos"


def test_of_a_long_path_the_end_is_shown() -> None:
    run = replace(living(), name="/a/very/long/folder" * 8 + "/mine")
    lines = plain(full_screen(run, 80, 23, "step"))
    assert "/mine  resnet18 on photos  " in lines[0] and lines[0].startswith("…")
    assert "/mine" in plain(card_screen([run, run], 0, 80, 23, "step"))[0]


def test_colours_are_the_terminals_own() -> None:
    allowed = {"bold", "dim", "reverse", "red", "green", "yellow", "blue", "magenta", "cyan"}
    for line in [*full_screen(living(), 160, 50, "step"), footer(80, "step", several=True)]:
        styles = [str(line.style), *(str(span.style) for span in line.spans)]
        assert {word for style in styles for word in style.split()} <= allowed
