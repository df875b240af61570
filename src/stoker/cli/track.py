"""stoker track RUN: copy the curves of a run to a tracker, and tell of its end by a command."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cli.flags import Parser
from stoker.cli.places import kept_fresh, run_folder
from stoker.errors import FINISHED, BadRequest
from stoker.run.directory import Run
from stoker.text import say, shown

if TYPE_CHECKING:
    from stoker.survive.stopping import StopRequest
    from stoker.track.feed import Feed
    from stoker.track.notify import Notifier
    from stoker.track.sink import SinkKind

SINKS = ("tensorboard", "mlflow", "wandb", "csv")
FOLDER = Path("tracked")
"""Where sinks that write files have their folders, unless --out names another."""


def parser() -> Parser:
    track = Parser(
        prog="stoker track",
        usage="stoker track RUN --to tensorboard|mlflow|wandb|csv [flags]",
        description="Follow a run, living or ended, and copy its curves to a tracker: one value of "
        "each metric for a step, also after kills and resumes. It only reads the run, from a "
        "process of its own: a tracker that hangs or refuses costs the run nothing.",
        examples=(
            "stoker track runs/a --to tensorboard     then: tensorboard --logdir tracked",
            "stoker track runs/a --to mlflow --uri http://127.0.0.1:5000",
            "stoker track runs/a --to csv --once      what there is now",
            "stoker track runs/a --notify 'notify-send --app-name stoker ended'",
        ),
    )
    add = track.add_argument
    add("run", metavar="RUN", type=Path, help="what 'stoker train' wrote, or will write")
    add("--to", metavar="|".join(SINKS), default="", help="the tracker")
    add("--out", metavar="FOLDER", default="", help="for its files [tracked/TRACKER/NAME-OF-RUN]")
    add("--uri", metavar="URI", default="", help="of MLflow [MLFLOW_TRACKING_URI]")
    add("--project", metavar="NAME", default="stoker", help="MLflow experiment, W&B project")
    add("--offline", action="store_true", help="W&B: write files for 'wandb sync', send nothing")
    add("--every-step", action="store_true", help="a point for each step [for about 10 s of steps]")
    add("--once", action="store_true", help="copy what is there, and end")
    add("--follow", action="store_true", help="go on while the run is stopped and may resume")
    add("--every", type=float, default=5.0, metavar="SECONDS", help="between two looks [5]")
    add(
        "--patience",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="after the end, seconds to wait for a tracker that takes nothing [60]",
    )
    add(
        "--notify",
        metavar="COMMAND",
        default="",
        help="run this at the end of the run, when it stalls, fails or is killed, with STOKER_RUN, "
        "STOKER_EVENT, STOKER_STEP, STOKER_BEST, STOKER_DOLLARS and STOKER_MESSAGE set",
    )
    return track


def run(arguments: Sequence[str]) -> int:
    parsed = parser().parse(arguments)
    named, parsed.run = parsed.run, Path(run_folder(parsed.run))
    words = check(parsed)
    from stoker.survive.stopping import listening

    with listening() as stop, kept_fresh([named], parsed.every):
        return follow(parsed, words, stop)


def check(parsed: argparse.Namespace) -> list[str]:
    """The words of the command to notify by. Raises BadRequest for flags that cannot be right."""
    if not parsed.to and not parsed.notify:
        raise BadRequest(f"nothing to do: name a tracker (--to {'|'.join(SINKS)}) or --notify")
    if parsed.to and parsed.to not in SINKS:
        from stoker.recipe.resolve import nearest

        near = nearest(parsed.to, SINKS)
        hint = f"did you mean '{near}'?" if near else f"it takes {', '.join(SINKS)}"
        raise BadRequest(f"--to {shown(parsed.to)}: {hint}")
    for flag, least in (("every", 0.1), ("patience", 0.0)):
        if not least <= getattr(parsed, flag) < 1e6:
            raise BadRequest(f"--{flag} must be at least {least:g}, not {getattr(parsed, flag):g}")
    try:
        words = shlex.split(parsed.notify)
    except ValueError as error:
        raise BadRequest(f"--notify {shown(parsed.notify)}: {error}") from error
    if parsed.notify and not words:
        raise BadRequest("--notify needs a command")
    if parsed.to:
        check_sink(parsed)
    return words


def check_sink(parsed: argparse.Namespace) -> None:
    """Raise BadRequest where the tracker cannot be used as it is asked for."""
    from stoker.track.sink import KINDS

    kind = KINDS[parsed.to]
    if not kind.is_installed:
        raise BadRequest(
            f"--to {parsed.to} needs the package {kind.package}: pip install {kind.package}"
        )
    if parsed.to == "mlflow" and not (parsed.uri or os.environ.get("MLFLOW_TRACKING_URI")):
        raise BadRequest(
            "--to mlflow needs to know where: --uri http://HOST:PORT, or --uri file:FOLDER"
        )
    if kind.has_folder:
        parsed.out = parsed.out or str(FOLDER / parsed.to / parsed.run.resolve().name)
        out, run_path = Path(parsed.out).resolve(), parsed.run.resolve()
        if run_path == out or run_path in out.parents:
            raise BadRequest(
                f"--out {shown(parsed.out)} is in the run, which is only read: name another folder"
            )


def follow(parsed: argparse.Namespace, words: Sequence[str], stop: StopRequest) -> int:
    """Follow the run; the exit code."""
    from stoker.track.follow import Follower, FollowOptions, await_run
    from stoker.track.sink import KINDS

    began, run = time.time(), Run(parsed.run)
    if parsed.once and not run.exists:
        raise BadRequest(f"{shown(str(run.path))} is not a run (no run.json)")
    if not await_run(run, say, lambda: bool(stop), parsed.every):
        say("stopped: the same command goes on")
        return FINISHED
    kind = KINDS[parsed.to] if parsed.to else None
    follower = Follower(
        run,
        FollowOptions(parsed.every, parsed.patience, parsed.once, parsed.follow),
        say,
        kind=kind,
        feed=feed_of(run, kind, parsed) if kind else None,
        notifier=notifier_of(run, words, parsed, began) if words else None,
    )
    return follower.follow(lambda: bool(stop))


def feed_of(run: Run, kind: SinkKind, parsed: argparse.Namespace) -> Feed:
    """What hands the points to the tracker. Raises BadRequest where run.json is damaged."""
    from stoker.track.feed import Feed
    from stoker.track.follow import options_of
    from stoker.track.process import SinkProcess

    def start() -> SinkProcess:
        options = options_of(
            run,
            out=parsed.out,
            uri=parsed.uri,
            project=parsed.project,
            offline=parsed.offline,
        )
        return SinkProcess(parsed.to, options)

    run.record  # noqa: B018
    where = f" ({shown(parsed.out)})" if kind.has_folder else ""
    points = "each step" if parsed.every_step else "about ten seconds of steps"
    say(f"copies {shown(str(run.path))} to {kind.title}{where}, a point for {points}")
    return Feed(run, kind, start, say, every_step=parsed.every_step)


def notifier_of(
    run: Run, words: Sequence[str], parsed: argparse.Namespace, began: float
) -> Notifier:
    """What runs the command of --notify."""
    from stoker.track.notify import KEPT, CommandRunner, IncidentWatch, Notifier

    kept = Path(parsed.out) / KEPT if parsed.to and parsed.out else None
    return Notifier(run.path.resolve(), IncidentWatch(began, kept), CommandRunner(words, say), say)
