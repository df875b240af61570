"""Pictures of Stoker as a user sees it, for docs/screens.

    python benchmarks/screens.py first-run     writes docs/screens/first-run-*.svg
    python benchmarks/screens.py watch RUN OUT.svg --theme light|dark
    python benchmarks/screens.py report RUN OUT.png --theme light|dark

The first types the commands of docs/first-run.md in tmux and draws its screen. The photographs are
small pictures made for it, so figures of speed say nothing. The second draws `stoker watch` of a
run as it is now, or as it was at its last event. The third needs Chromium: the top of `stoker
report`.
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
COLUMNS, ROWS = 100, 34
LAST_ROWS = 16
"""Rows that are drawn of the end of a run."""
LONGEST_S = 240.0
PROMPTS = ".prompts"
"""A file that gets a line for each prompt: so the end of a command leaves no mark on the screen."""
SHELL = f"""PS1='\\[\\e[32m\\]$\\[\\e[0m\\] '
PROMPT_COMMAND='echo >> {PROMPTS}'
"""
TRAIN = "stoker train photos"
RUN = "runs/photos-first-look-*"


class Terminal:
    """A shell in a tmux session, with a server of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._socket = folder, str(folder / ".tmux")
        size = ("-x", str(COLUMNS), "-y", str(ROWS))
        (folder / ".shell").write_text(SHELL)
        self._tmux("new-session", "-d", *size, "-c", str(folder), "bash --rcfile .shell")
        self.wait_for(lambda _: self.prompts > 0)

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", self._socket, "-f", os.devnull, *words]
        variables = {**os.environ, "TERM": "xterm-256color"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=variables)
        return done.stdout

    @property
    def prompts(self) -> int:
        """How many prompts the shell has printed."""
        file = self._folder / PROMPTS
        return len(file.read_text().splitlines()) if file.exists() else 0

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)
        self._tmux("send-keys", "Enter")

    def run(self, command: str) -> None:
        """Type a command and wait for its end."""
        before = self.prompts
        self.type(command)
        self.wait_for(lambda _: self.prompts > before)

    def interrupt(self) -> None:
        """Press Ctrl-C and wait for the prompt."""
        before = self.prompts
        self._tmux("send-keys", "C-c")
        self.wait_for(lambda _: self.prompts > before)

    def clear(self) -> None:
        """Empty the screen of a shell that waits."""
        self._tmux("send-keys", "C-l")
        self.wait_for(lambda screen: len(screen.strip().splitlines()) <= 1)

    def screen(self, *, coloured: bool = False) -> str:
        """What is on the screen, with escape codes where it is `coloured`."""
        text = self._tmux("capture-pane", "-p", *(["-e"] if coloured else []))
        return text.rstrip().replace(str(self._folder), "/home/you")

    def wait_for(self, condition: Callable[[str], bool]) -> None:
        """Look at the screen until it is as wanted. Raises TimeoutError where it never is."""
        give_up = time.monotonic() + LONGEST_S
        while not condition(screen := self.screen()):
            if time.monotonic() > give_up:
                raise TimeoutError(screen)
            time.sleep(0.1)

    def close(self) -> None:
        self._tmux("kill-server")


def first_run(folder: Path) -> dict[str, str]:
    """The screens of a first run in a folder with `photos`: name and text with escape codes."""
    screens, terminal = {}, Terminal(folder)
    try:
        terminal.type(TRAIN)
        terminal.wait_for(lambda screen: screen.count("evaluated at") >= 5 and "eta" in screen)
        screens["live"] = terminal.screen(coloured=True)
        terminal.wait_for(lambda screen: screen.count("evaluated at") >= 8)
        terminal.interrupt()
        terminal.run("echo $?")
        terminal.type(TRAIN)
        terminal.wait_for(lambda screen: is_resumed(screen) and "eta" in screen)
        screens["stop"] = from_line("stopped at", terminal.screen(coloured=True), before=1)
        terminal.wait_for(lambda screen: "report:" in screen and screen.endswith("\n$"))
        last = "\n".join(terminal.screen(coloured=True).splitlines()[-LAST_ROWS:])
        screens["train"] = from_line("evaluated at", last)
        for name, commands in LATER.items():
            terminal.clear()
            for command in commands:
                terminal.run(command)
            screens[name] = terminal.screen(coloured=True)
    finally:
        terminal.close()
    return screens


LATER = {
    "explain": [f"stoker explain {RUN}"],
    "predict": [f"stoker predict {RUN} new.jpg --top 2", f"stoker evaluate {RUN}"],
}
"""The commands of a picture, once the run has finished."""


def from_line(words: str, text: str, before: int = 0) -> str:
    """The part of a screen from the first line with these words, and so many lines before it."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if words in line)
    return "\n".join(lines[max(first - before, 0) :])


def is_resumed(screen: str) -> bool:
    """Whether an evaluation stands below the line that says where the run resumed."""
    return "evaluated at" in screen.partition("resumed at")[2]


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


def svg_of(lines: Sequence[Text], columns: int, title: str, theme: str) -> str:
    """A terminal with these lines, as an SVG that fetches nothing."""
    console = Console(
        record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="standard"
    )
    for line in lines:
        console.print(line, no_wrap=True, overflow="crop", highlight=False)
    form = FONT.sub("", CONSOLE_SVG_FORMAT)
    return console.export_svg(title=title, theme=THEMES[theme], code_format=form)


def watch_svg(run: Path, theme: str, columns: int, rows: int, at_last: bool) -> str:
    """The screen of `stoker watch` as an SVG: as it is now, or `at_last` event."""
    runs = RunWatcher(run)
    now = (history_of(Run(run)).last or time.time()) + 1 if at_last else None
    lines = full_screen(runs.look(now), columns, rows - 1, "step")
    lines += [Text()] * (rows - 1 - len(lines)) + [footer(columns, "step", several=False)]
    return svg_of(lines, columns, "stoker watch", theme)


def draw_first_run(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="screens.py first-run")
    parser.add_argument("--out", type=Path, default=SCREENS, help="the folder of the pictures")
    parser.add_argument("--theme", choices=sorted(THEMES), default="dark")
    given = parser.parse_args(words)
    sys.path.insert(0, str(ROOT / "tests"))
    from page_materials import flowers

    given.out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        flowers(Path(name))
        for screen, text in first_run(Path(name)).items():
            lines = Text.from_ansi(text).split("\n", allow_blank=True)
            if lines[-1].plain.strip() != "$":
                lines.append(Text())  # without it, rich cuts the last line
            svg = svg_of(lines, COLUMNS, "bash", given.theme)
            (given.out / f"first-run-{screen}.svg").write_text(svg, encoding="utf-8")


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


DRAWINGS = {"first-run": draw_first_run, "watch": draw_watch, "report": draw_report}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=DRAWINGS, help="-h after it shows its flags")
    given = parser.parse_args(sys.argv[1:2])
    DRAWINGS[given.what](sys.argv[2:])


if __name__ == "__main__":
    main()
