"""stoker watch RUN...: one screen about living or ended runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.cli.places import kept_fresh, run_folder
from stoker.errors import FINISHED, BadRequest
from stoker.run.listing import runs_below
from stoker.text import shown

LEAST_S = 0.5
EXTRA = "pip install textual"


def parser() -> Parser:
    watch = Parser(
        prog="stoker watch",
        usage="stoker watch RUN ... [--every SECONDS] [--once]",
        description="Show runs on one screen, kept up to date: curves, speed, what limits it, the "
        "machines, the money and the last checkpoint. It reads the files of a run alone. Keys: q "
        "quits, x changes the x-axis, ? shows all keys.",
    )
    add = watch.add_argument
    help = "run directories or s3://BUCKET/RUN, living or ended, or folders of runs; one may be "
    help += "yet to begin"
    add("runs", metavar="RUN", nargs="+", type=Path, help=help)
    add("--every", metavar="SECONDS", type=float, default=2.0, help="seconds between looks [2]")
    add("--once", action="store_true", help="print one screen and exit, as into a pipe")
    return watch


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    if not parsed.every >= LEAST_S:  # also where it is not a number
        raise BadRequest(f"--every must be at least {LEAST_S} seconds, not {parsed.every:g}")
    paths = [Path(run_folder(run)) for run in parsed.runs]
    check_paths(paths)
    if parsed.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        from stoker.show.watch.once import print_once

        print_once(paths)
        return FINISHED
    if find_spec("textual") is None:
        raise BadRequest(
            f"stoker watch needs Textual for a living screen: {EXTRA}; --once prints one screen "
            "without it"
        )
    from stoker.show.watch.app import WatchApp

    with kept_fresh(parsed.runs, parsed.every):
        WatchApp(paths, parsed.every).run(mouse=False)
    return FINISHED


def check_paths(paths: Sequence[Path]) -> None:
    """Raise BadRequest where a path is neither a run nor a folder of runs. One alone may be a run
    that has not begun: a path that does not exist, or a folder that training has locked."""
    for path in paths:
        name = shown(str(path))
        if has_runs(path):
            continue
        if path.is_dir():
            if len(paths) == 1 and (os.path.lexists(path / "lock") or not any(path.iterdir())):
                continue
            raise BadRequest(f"{name} is not a run and has no runs in it: name a run directory")
        if path.exists():
            raise BadRequest(f"{name} is not a run: name a run directory")
        if len(paths) > 1:
            raise BadRequest(f"no run at {name}: name it alone to wait for it")
        if not path.absolute().parent.is_dir():
            raise BadRequest(f"no run at {name}, and no folder to wait for it in")


def has_runs(path: Path) -> bool:
    """Whether a path is a run or a folder of runs. Raises BadRequest where it cannot be read."""
    try:
        return next(runs_below(path), None) is not None
    except OSError as error:
        raise BadRequest(f"cannot read {shown(str(path))}: {error.strerror or error}") from error
