"""stoker train DATA: start, resume, or say that it is finished."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import Parser, add_recipe_flags, resolve_flags
from stoker.errors import (
    BAD_REQUEST,
    FAILED,
    FINISHED,
    INTERRUPTED,
    STEPPED_ASIDE,
    BadRequest,
    Interrupted,
    StokerError,
)
from stoker.fleet.addresses import Endpoint, Nodes, meeting_point
from stoker.fleet.launcher import BEGAN, is_rank, log_lines_since
from stoker.fleet.launcher import launch as start_ranks
from stoker.fleet.rendezvous import ASKING
from stoker.host.threads import exit_past_hanging_threads
from stoker.recipe.changes import CONSENT
from stoker.recipe.resolve import Resolved
from stoker.run.directory import Run
from stoker.run.events import Listener
from stoker.survive.stopping import StopRequest
from stoker.text import say

PACKED = "STOKER_PACKED"
"""Tells ranks where the launcher has packed the folder to."""
OUTCOMES = {"finished": FINISHED, "interrupted": INTERRUPTED, "failed": FAILED}


def parser() -> Parser:
    made = Parser(
        prog="stoker train",
        usage="stoker train DATA [--recipe NAME] [flags]",
        description="Train a classifier on a folder of labelled images, packed or not. "
        "The same command starts a run, resumes it, or says that it is finished.",
        examples=(
            "stoker train photos                    pack the folder and train a small model",
            "stoker train photos --model resnet18 --pretrained --epochs 10 --amp bf16",
            "stoker train imagenet-packed --recipe imagenet-resnet50 --ranks 8",
        ),
    )
    made.add_argument("data", metavar="DATA", help="a packed set, or a folder of images")
    made.add_argument("--run", metavar="DIR", help="run directory [runs/SET-RECIPE-HASH]")
    made.add_argument("--ranks", type=int, default=1, metavar="N", help="processes here [1]")
    changes = made.add_argument(
        "--allow-change",
        metavar="KEY,...",
        default="",
        help="resume a run though these recipe keys have changed",
    )
    add_recipe_flags(made)
    made.hide([changes, *add_node_flags(made)])
    return made


def add_node_flags(parser: Parser) -> list[argparse.Action]:
    """The flags of a run on several machines."""
    group = parser.add_argument_group("several machines")
    return [
        group.add_argument(
            "--nodes",
            metavar="MIN:MAX",
            help="how many machines train together; they may come and go. Start the same command "
            "on each; they share the run directory and the packed set [this one alone]",
        ),
        group.add_argument(
            "--rendezvous",
            metavar="HOST:PORT",
            help="where the machines meet: an address of one of them, and a free port there",
        ),
        group.add_argument(
            "--yes",
            action="store_true",
            help="train even if the link between machines takes more than a fifth of each step",
        ),
    ]


def run(words: Sequence[str]) -> int:
    stop = StopRequest()
    stop.listen()
    parsed = parser().parse(words)
    resolved = resolve_flags(parsed)
    if parsed.ranks < 1:
        raise BadRequest(f"--ranks must be at least 1, not {parsed.ranks}")
    meeting = meeting_point(parsed.nodes, parsed.rendezvous)
    from stoker.data.dataset import Dataset

    data = packed(parsed.data, resolved.recipe.spot_notice, stop)
    dataset = Dataset(data)
    path = Path(parsed.run) if parsed.run else default_run(data, dataset.fingerprint, resolved)
    run = Run(path)
    allowed = [name.replace("-", "_") for name in parsed.allow_change.split(",") if name]
    if run.exists:
        changed = run.recipe_changes(resolved.recipe, dataset, allowed)
        if run.finished and not any(change.kind == CONSENT for change in changed):
            if os.environ.get("RANK", "0") == "0":
                say(f"finished already: stoker explain {path}")
            return FINISHED
    if (meeting or parsed.ranks > 1) and not is_rank():
        if stop:
            raise Interrupted("stopped before it began: the same command starts it")
        if meeting:
            return exit_past_hanging_threads(
                lambda: launch_elastic(parsed.ranks, words, data, run, stop, *meeting), ASKING
            )
        return launch(parsed.ranks, words, data, run, stop)

    def train_as_rank() -> int:
        outcome = train_here(data, resolved, path, stop, allowed, parsed.yes)
        return STEPPED_ASIDE if outcome == "interrupted" and stop.steps_aside else OUTCOMES[outcome]

    from stoker.data.loading.loader import DECODERS

    return exit_past_hanging_threads(train_as_rank, DECODERS)


def packed(folder: str, spot_notice: str, stop: StopRequest) -> Path:
    """The packed set: the folder itself, or what packing it gives."""
    from stoker.data.dataset import Dataset

    if is_rank() and PACKED in os.environ:
        return Path(os.environ[PACKED])
    if Dataset.is_packed(folder):
        return Path(folder)
    from stoker.cli.pack import pack_and_show

    return pack_and_show(folder, stop=stop, spot_notice=spot_notice)


def default_run(data: Path, fingerprint: str, resolved: Resolved) -> Path:
    """The run's own name: set, recipe, and a hash of all that shapes the result."""
    digest = resolved.recipe.digest(fingerprint)
    name = data.resolve().name.removesuffix("-packed")
    return Path("runs") / f"{name}-{resolved.name}-{digest}"


def train_here(
    data: Path,
    resolved: Resolved,
    path: Path,
    stop: StopRequest,
    allowed: Sequence[str],
    yes: bool,
) -> str:
    """Train in this process; rank 0 talks."""
    from stoker.show.console import console_for

    listeners: tuple[Listener, ...] = ()
    if os.environ.get("RANK", "0") == "0":
        say(f"run {path}")
        listeners = (console_for(str(path), resolved.recipe.log_interval),)
    from stoker.train.attempt.lost_peers import naming_lost_peers
    from stoker.train.attempt.session import train

    with naming_lost_peers(Run(path)):
        return train(data, resolved, path, listeners, stop, allowed, yes)


def launch(ranks: int, words: Sequence[str], data: Path, run: Run, stop: StopRequest) -> int:
    """Start the ranks and speak for them."""
    run.path.mkdir(parents=True, exist_ok=True)
    log = run.path / "launcher.log"
    said_before = log.stat().st_size if log.exists() else 0
    extra = {PACKED: str(data), BEGAN: str(time.time())}
    arguments = ["train", *words, "--run", str(run.path)]
    ended = start_ranks(ranks, arguments, log, extra, lambda: bool(stop))
    came_to = 0
    while ended.killed and not (ended.signalled or stop or run.finished):
        if (steps := steps_of(run)) <= came_to:
            break
        came_to = steps
        say(f"{', '.join(ended.killed)}: going on from the newest checkpoint")
        ended = start_ranks(ranks, arguments, log, extra, lambda: bool(stop))
    if set(ended.codes) <= {FINISHED, INTERRUPTED}:
        return max(ended.codes)
    if ended.killed and ended.codes[0] == FINISHED and run.finished:
        return FINISHED  # what is killed after the end is no loss
    said, ours = log_lines_since(log, said_before)
    if BAD_REQUEST in ended.codes and ours:
        raise BadRequest("; ".join(line.removeprefix("stoker: ") for line in ours))
    traceback = [line for line in said if line not in ours][-20:]
    for line in (*(traceback if any("Traceback" in line for line in said) else ()), *ours):
        print(line, file=sys.stderr)
    raise StokerError(
        f"a rank failed or was killed (exit codes {ended.codes}); all it said is in {log}"
    )


def steps_of(run: Run) -> int:
    """Steps that a run has made so far."""
    return max((event["step"] + 1 for event in run.merged("step")), default=0)


def launch_elastic(
    ranks: int,
    words: Sequence[str],
    data: Path,
    run: Run,
    stop: StopRequest,
    place: Endpoint,
    nodes: Nodes,
) -> int:
    """Take part in a run over several nodes, and speak for the ranks of this one."""
    from stoker.fleet.elastic import Launch
    from stoker.fleet.elastic import launch as take_part

    def tell(log: Path, place: int, code: int) -> None:
        said, ours = log_lines_since(log, place)
        for line in ours or (said[-20:] if code == FAILED else []):
            print(line, file=sys.stderr, flush=True)

    plan = Launch(
        ranks=ranks,
        arguments=["train", *words, "--run", str(run.path)],
        run_path=run.path,
        extra={PACKED: str(data), BEGAN: str(time.time())},
        stop=lambda: bool(stop),
        progress=lambda: steps_of(run),
        tell=tell,
    )
    say(f"waiting for nodes at {place} ({nodes})")
    try:
        code = take_part(plan, place, nodes)
    except Interrupted:
        if run.finished:
            return FINISHED
        raise
    if code == FAILED:
        raise StokerError(
            "ranks of this node failed twice and the run came no further in between; "
            f"all they said is in {run.path / 'launcher-*.log'}"
        )
    if code == INTERRUPTED:
        say("this node has left the run: the same command joins it again")
    return code
