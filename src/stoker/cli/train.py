"""stoker train DATA: start, resume, or say that it is finished."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import Parser, add_recipe_flags, resolve_flags
from stoker.errors import FAILED, FINISHED, INTERRUPTED, BadRequest, StokerError
from stoker.recipe.origins import Resolved
from stoker.run import Run
from stoker.survive.stopping import StopWish

PACKED = "STOKER_PACKED"
"""Tells ranks where the launcher has packed the folder to."""
OUTCOMES = {"finished": FINISHED, "interrupted": INTERRUPTED, "failed": FAILED}


def parser() -> Parser:
    made = Parser(
        prog="stoker train",
        usage="stoker train DATA [--recipe NAME] [flags]",
        description="Train a classifier on a folder of labelled images, packed or not. "
        "The same command starts a run, goes on with it, or says that it is finished.",
    )
    made.add_argument("data", metavar="DATA", help="a packed set, or a folder of images")
    made.add_argument("--run", metavar="DIR", help="run directory [runs/SET-RECIPE-HASH]")
    made.add_argument("--ranks", type=int, default=1, metavar="N", help="processes here [1]")
    add_recipe_flags(made)
    return made


def run(words: Sequence[str]) -> int:
    from stoker.fleet.local import end_with_parent
    from stoker.fleet.torchrun import is_launched

    parsed = parser().parse(words)
    resolved = resolve_flags(parsed)
    if parsed.ranks < 1:
        raise BadRequest(f"--ranks must be at least 1, not {parsed.ranks}")
    data = packed(parsed.data)
    path = Path(parsed.run) if parsed.run else default_run(data, resolved)
    if Run(path).exists and Run(path).finished:
        print(f"finished already: stoker explain {path}")
        return FINISHED
    if parsed.ranks > 1 and not is_launched():
        return launch(parsed.ranks, words, data, path)
    stop = StopWish()
    stop.listen()
    if is_launched():
        end_with_parent()
    outcome = train_here(data, resolved, path, stop)
    # A launcher reads the outcome from the run; to torchrun an orderly stop is no failure.
    return FINISHED if is_launched() else OUTCOMES[outcome]


def packed(folder: str) -> Path:
    """The packed set: the folder itself, or what packing it gives."""
    from stoker.data.index import Dataset

    if PACKED in os.environ:
        return Path(os.environ[PACKED])
    if Dataset.is_packed(folder):
        return Path(folder)
    from stoker.cli.pack import pack_and_show

    return pack_and_show(folder)


def default_run(data: Path, resolved: Resolved) -> Path:
    """The run's own name: set, recipe, and a hash of all that shapes the result."""
    from stoker.data.index import Dataset

    digest = resolved.recipe.digest(Dataset(data).fingerprint)
    name = data.resolve().name.removesuffix("-packed")
    return Path("runs") / f"{name}-{resolved.name}-{digest}"


def train_here(data: Path, resolved: Resolved, path: Path, stop: StopWish) -> str:
    """Train in this process; rank 0 talks."""
    from stoker.show.console import console_for

    first = os.environ.get("RANK", "0") == "0"
    console = console_for(str(path), resolved.recipe.log_interval)
    if first:
        print(f"run {path}", flush=True)
    from stoker.train.session import train

    return train(data, resolved, path, (console,) if first else (), stop)


def launch(ranks: int, words: Sequence[str], data: Path, path: Path) -> int:
    """Start the ranks and speak for them: the exit code is what the run directory says."""
    from stoker.fleet.torchrun import launch as start

    run = Run(path)
    path.mkdir(parents=True, exist_ok=True)
    before = run.attempts()
    log = path / "launcher.log"
    said_before = log.stat().st_size if log.exists() else 0
    start(ranks, ["train", *words, "--run", str(path)], log, {PACKED: str(data)})
    begun = run.attempts() != before
    end = run.end() if begun else None
    if end is not None and end["outcome"] != "failed":
        return OUTCOMES[end["outcome"]]
    said = log.read_bytes()[said_before:].decode(errors="replace").splitlines()
    ours = list(dict.fromkeys(line for line in said if line.startswith("stoker: ")))
    if ours and not begun:
        raise BadRequest("; ".join(line.removeprefix("stoker: ") for line in ours))
    for line in ours or said[-20:]:
        print(line, file=sys.stderr)
    raise StokerError(f"a rank failed or was killed; all it said is in {log}")
