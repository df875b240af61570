"""stoker requeue FOLDER --code N: the last line of a batch file. Records how a job of SLURM ended,
and queues it again where that makes sense."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.errors import BadRequest
from stoker.fleet.grid.directory import Grid
from stoker.fleet.slurm.commands import own_id, requeue
from stoker.fleet.slurm.ends import Progress, record_end
from stoker.run.directory import Run
from stoker.text import plural, say, shown


def parser() -> Parser:
    verb = Parser(
        prog="stoker requeue",
        usage="stoker requeue FOLDER --code N [--progress PATH]",
        description="The last line of the batch files that 'stoker launch slurm' writes. Records "
        "how the job ended, and queues it again if it was stopped with everything saved (75), or "
        "failed, as long as it makes progress. Ends with the code of the command.",
    )
    verb.add_argument("folder", metavar="FOLDER", type=Path, help="folder of the job")
    verb.add_argument(
        "--code", metavar="N", type=int, required=True, help="the command's exit code"
    )
    verb.add_argument(
        "--progress",
        metavar="PATH",
        type=Path,
        action="append",
        default=[],
        help="a run, grid or packed set that the job works on; may be given several times",
    )
    return verb


def run(arguments: Sequence[str]) -> int:
    parsed = parser().parse(arguments)
    if not parsed.folder.is_dir():
        raise BadRequest(f"no folder at {shown(str(parsed.folder))}")
    job = own_id(os.environ)
    decision = record_end(parsed.folder, job, parsed.code, progress_of(parsed.progress))
    say(f"job {job or '(none)'}: {decision.reason}")
    if decision.requeue:
        requeue(job)
    return int(parsed.code)


def progress_of(paths: Sequence[Path]) -> Progress:
    """How far a job got, by the grids, packed sets and runs that it works on, in this order."""
    parts = [part_of(path) for path in paths]
    texts = [part.text for part in parts if any(part.marks)] or ["the start"] * bool(parts)
    return Progress(tuple(mark for part in parts for mark in part.marks), ", ".join(texts))


def part_of(path: Path) -> Progress:
    if (path / "plans").is_dir():
        grid = Grid(path)
        cells = grid.files.names("cells")
        left = [cell for cell in cells if not grid.is_done(cell)]
        done, steps = (
            len(cells) - len(left),
            sum(steps_in(grid.cell_path(c) / "work/run") for c in left),
        )
        return Progress(
            (done, steps), plural(done, "cell") + f" and {plural(steps, 'step')}" * (steps > 0)
        )
    if (path / "run.json").exists():
        steps = steps_in(path)
        return Progress((steps,), f"step {steps:,}")
    shards = len(list(path.glob("*/*.tar")))
    return Progress((shards,), plural(shards, "shard"))


def steps_in(path: Path) -> int:
    """The steps that the run in a folder has made; 0 where there is none."""
    run = Run(path)
    return run.steps_made if run.exists else 0
