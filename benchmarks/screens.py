"""Terminal screens as a user sees them, captured in tmux at 80 and 160 columns.

    python benchmarks/screens.py            writes docs/screens/VERB-COLUMNS.txt

Needs tmux. The photographs are small pictures made for it, so figures of speed say nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

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


def main() -> None:
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
