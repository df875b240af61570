"""Text from files reaches a screen as printable text, and markup in it means nothing."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from made_runs import RunMaker
from stoker.run.events import summary_path
from stoker.show.watch.layout import card_screen, full_screen
from stoker.show.watch.screen_data import AXES
from stoker.show.watch.watcher import RunWatcher

ESCAPES = (
    "\x1b[31m\x1b]0;t\x07\x1b]8;;http:x\x1b\\\x9b1m\x85\x08\r\u202e\u2066\t[red][/nope][@click]"
)
HOSTILE = f"a{ESCAPES}\nINJECTED"
WIDE = "数据集" * 40 + "🔥" * 30


def hostile(value: Any, words: str) -> Any:
    """Plain data with each text replaced."""
    if isinstance(value, str):
        return words
    if isinstance(value, list):
        return [hostile(part, words) for part in value]
    if isinstance(value, dict):
        return {name: hostile(part, words) for name, part in value.items()}
    return value


def made(path: Path, words: str) -> Path:
    """A run in which every text is other words."""
    maker = RunMaker(path, steps=120, ranks=2, gpus=True).attempt(0, 100, None).attempt(80, 120)
    record = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(hostile(record, words)))
    for attempt in (1, 2):
        for rank in (0, 1):
            file = maker.run.events_path(attempt, rank)
            summary_path(file).unlink()
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            kinds = ("stall", "note", "faults", "save_failed", "peer_lost")
            lines += [{"kind": k, "time": 1.79e9, "words": "x", "reason": "x"} for k in kinds]
            with file.open("w") as out:
                for event in lines:
                    kept = {"kind": event["kind"]}
                    out.write(json.dumps({**hostile(event, words), **kept}) + "\n")
    return path


@pytest.mark.parametrize("words", [HOSTILE, WIDE, "", "\ud800", "x" * 5000, "[bold]"])
@pytest.mark.parametrize("size", [(80, 23), (160, 49), (33, 9)])
def test_no_text_escapes(tmp_path: Path, words: str, size: tuple[int, int]) -> None:
    name = words.replace("/", "|")[:50] or "run"
    folder = tmp_path / (name if "\ud800" not in name else "run")
    run = RunWatcher(made(folder, words)).look(1.79e9 + 9000)
    width, height = size
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    for axis in AXES:
        for lines in (
            full_screen(run, width, height, axis),
            full_screen(run, width, None, axis),
            card_screen([run, run, run], 1, width, height, axis),
        ):
            for line in lines:
                assert line.plain.isprintable()
                assert line.cell_len == width
                assert not line.plain.startswith("INJECTED")
                with console.capture() as capture:
                    console.print(line, end="")
                assert capture.get() == line.plain
    os.fsencode(run.name)


def test_markup_is_shown_as_it_is(tmp_path: Path) -> None:
    run = RunWatcher(made(tmp_path / "r", "[bold red]x[/]")).look(1.79e9 + 9000)
    text = "\n".join(line.plain for line in full_screen(run, 160, None, "step"))
    assert "[bold red]x[/] on " in text and "stall: [bold red]x[/]" in text
    assert "slowest rank" in text and "on [bold red]x[/]" in text
