"""Terminal screens as a user sees them, captured in tmux at 80 and 160 columns.

    python benchmarks/screens.py            writes docs/screens/VERB-COLUMNS.txt
    python benchmarks/screens.py watch RUN OUT.svg --theme light|dark
    python benchmarks/screens.py report RUN OUT.png --theme light|dark

The first needs tmux. The photographs are small pictures made for it, so figures of speed say
nothing. The second draws `stoker watch` of a run as it is now, or as it was at its last event. The
third needs Chromium: the top of `stoker report`.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from stoker.history.history import history_of
from stoker.run.directory import Run
from stoker.show.report.page import write_report
from stoker.show.watch.layout import footer, full_screen
from stoker.show.watch.watcher import RunWatcher

ROOT = Path(__file__).parents[1]
SCREENS = ROOT / "docs" / "screens"
WIDTHS = (80, 160)
ROWS = 60
LONGEST_S = 240.0
DONE = "__done__"
PROMPT = re.compile(r"^bash-[0-9.]+[#$] ?", re.MULTILINE)
RUN = "runs/flowers"
VARIABLE = "STOKER_FAULTS"
SLOW = '[{"fault": "stall", "at": "forward", "seconds": 0.05, "again": true}]'
TRAIN = f"stoker train flowers-packed --run {RUN} --epochs 12 --image-size 32 --batch-size 32"
COMMANDS = {
    "pack": "stoker pack flowers",
    "train": TRAIN,
    "explain": f"stoker explain {RUN}",
    "doctor": "stoker doctor flowers-packed --seconds 1 --image-size 32 --batch-size 32",
}


class Terminal:
    """A tmux session of a given width, with a server of its own."""

    def __init__(self, folder: Path, columns: int, **variables: str) -> None:
        self._socket = tempfile.mktemp(prefix="tmux-", dir=folder)
        self._variables = {**os.environ, "TERM": "xterm", **variables}
        size = ("-x", str(columns), "-y", str(ROWS))
        self._tmux("new-session", "-d", *size, "-c", str(folder), "bash --norc --noprofile")

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", self._socket, "-f", os.devnull, *words]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env=self._variables
        ).stdout

    def type(self, text: str) -> None:
        self._tmux("send-keys", text, "Enter")

    def screen(self) -> str:
        lines = self._tmux("capture-pane", "-p", "-S", "-").rstrip().splitlines()
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def wait_for(self, condition: Callable[[str], bool]) -> str:
        give_up = time.monotonic() + LONGEST_S
        while not condition(screen := self.screen()):
            if time.monotonic() > give_up:
                raise TimeoutError(screen)
            time.sleep(0.1)
        return screen

    def close(self) -> None:
        self._tmux("kill-server")


def capture(folder: Path, columns: int) -> dict[str, str]:
    """The screens of all commands, and one of a run under way."""
    screens = {}
    for verb, command in COMMANDS.items():
        slow = {VARIABLE: SLOW} if verb == "train" else {}
        terminal = Terminal(folder, columns, **slow)
        try:
            terminal.wait_for(lambda screen: bool(PROMPT.search(screen)))
            terminal.type(f"{command}; echo {DONE}")
            if verb == "train":
                live = terminal.wait_for(lambda screen: "eta" in screen and "evaluated" in screen)
                screens["train-live"] = live
            end = terminal.wait_for(lambda screen: f"\n{DONE}" in screen)
            screens[verb] = end
        finally:
            terminal.close()
    return {name: neat(text, folder) for name, text in screens.items()}


def neat(text: str, folder: Path) -> str:
    """A screen without our own marks and without the folder of this machine."""
    text = text.partition(f"\n{DONE}")[0].replace(f"; echo {DONE}", "")
    text = PROMPT.sub("$ ", text).replace(str(folder), "/home/user")
    return text.rstrip() + "\n"


THEMES = {
    "light": TerminalTheme(
        (255, 255, 255),
        (36, 41, 47),
        [
            *((36, 41, 47), (207, 34, 46), (17, 99, 41), (154, 103, 0)),
            *((9, 105, 218), (130, 80, 223), (27, 124, 131), (110, 119, 129)),
        ],
    ),
    "dark": TerminalTheme(
        (13, 17, 23),
        (201, 209, 217),
        [
            *((110, 118, 129), (255, 123, 114), (63, 185, 80), (210, 153, 34)),
            *((88, 166, 255), (188, 140, 255), (57, 197, 207), (201, 209, 217)),
        ],
    ),
}
FONT = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)
"""Fonts that a browser would fetch from elsewhere."""


def watch_svg(run: Path, theme: str, columns: int, rows: int, at_last: bool) -> str:
    """The screen of `stoker watch` as an SVG: as it is now, or `at_last` event."""
    runs = RunWatcher(run)
    now = (history_of(Run(run)).last or time.time()) + 1 if at_last else None
    lines = full_screen(runs.look(now), columns, rows - 1, "step")
    lines += [Text()] * (rows - 1 - len(lines)) + [footer(columns, "step", several=False)]
    console = Console(
        record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="standard"
    )
    for line in lines:
        console.print(line, no_wrap=True, overflow="crop", highlight=False)
    form = FONT.sub("", CONSOLE_SVG_FORMAT)
    return console.export_svg(title="stoker watch", theme=THEMES[theme], code_format=form)


def draw_report(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="screens.py report")
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--theme", choices=sorted(THEMES), default="dark")
    parser.add_argument("--size", default="1100,900", help="width and height in pixels")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report(Run(given.run), page)
        text = page.read_text(encoding="utf-8")
        text = text.replace('<html lang="en"', f'<html lang="en" data-theme="{given.theme}"', 1)
        page.write_text(text, encoding="utf-8")
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        target = f"--screenshot={given.out.resolve()}"
        command = ["chromium", *flags, f"--window-size={given.size}", target, page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    with Image.open(given.out) as picture:  # few colours: a small file
        picture.convert("RGB").quantize(64).save(given.out, optimize=True)


def draw_watch(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="screens.py watch")
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--theme", choices=sorted(THEMES), default="dark")
    parser.add_argument("--columns", type=int, default=120)
    parser.add_argument("--rows", type=int, default=42)
    parser.add_argument("--at-last-event", action="store_true", help="as it was while it ran")
    given = parser.parse_args(words)
    svg = watch_svg(given.run, given.theme, given.columns, given.rows, given.at_last_event)
    given.out.write_text(svg, encoding="utf-8")


def main() -> None:
    if sys.argv[1:2] == ["watch"]:
        draw_watch(sys.argv[2:])
        return
    if sys.argv[1:2] == ["report"]:
        draw_report(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    from samples import image_folder

    SCREENS.mkdir(exist_ok=True)
    for columns in WIDTHS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            image_folder(folder / "flowers", classes=5, images=60, size=(96, 72))
            for verb, text in capture(folder, columns).items():
                (SCREENS / f"{verb}-{columns}.txt").write_text(text)


if __name__ == "__main__":
    main()
