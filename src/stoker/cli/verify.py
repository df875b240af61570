"""stoker verify SET: compute every hash again, of a packed set or a run's checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.errors import FAILED, FINISHED, NewerFormat, StokerError
from stoker.recipe.resolve import parse_flag
from stoker.run.directory import Run
from stoker.run.progress import wrong_position
from stoker.show.progress import progress
from stoker.stores.location import location_of
from stoker.survive.manifest import MARKER, check_hashes, names_in
from stoker.survive.stopping import UNCHANGED, listening, stops_at_once
from stoker.text import plural, say, shown, size

TRIES = 10
"""How often checkpoints are looked at that the run replaces during the check."""


def parser() -> Parser:
    flags = Parser(
        prog="stoker verify",
        description="Read all of a packed set, or the checkpoints of a run, compute every hash "
        "again and name what is damaged. Nothing is changed.",
    )
    add = flags.add_argument
    add(
        "set",
        metavar="SET",
        help="a folder that 'stoker pack' or 'stoker train' wrote, or the location of a packed "
        "set or a run, such as s3://BUCKET/PREFIX",
    )
    add(
        "--threads",
        default="0",
        metavar="N",
        help="threads that read; 0 takes the cores, or 8 for a location [0]",
    )
    return flags


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    threads = parse_flag("threads", parsed.threads)
    with listening() as stop, stops_at_once(stop, "verifying", UNCHANGED):
        if (Path(parsed.set) / "run.json").is_file():
            return verify_run(Run(parsed.set))
        if (location := location_of(parsed.set)) and not location.is_web:
            from stoker.survive.remote.open import whole_copy

            if stored := whole_copy(location):
                return verify_run(Run(stored.folder), stored.damaged)

    # Imported here, so that --help and wrong flags do not wait for pyarrow.
    from stoker.data.verify import verify

    bar = progress()

    def on_progress(done: int, total: int) -> None:
        bar.update(done, total, f"{size(done)} of {size(total)} read")

    with closing(bar), listening() as stop, stops_at_once(stop, "verifying", UNCHANGED):
        report = verify(parsed.set, threads=threads, progress=on_progress)
    for line in [*report.problems, *(f"note: {note}" for note in report.notes)]:
        say(str(line))
    speed = f"{report.seconds:.1f} s, {size(report.bytes / max(report.seconds, 1e-9))}/s"
    if report.problems:
        files = len({problem.file for problem in report.problems})
        say(
            f"DAMAGED: {plural(len(report.problems), 'problem')} in {plural(files, 'file')} "
            f"({speed}); remove {shown(parsed.set)} and pack it again with 'stoker pack'"
        )
        return FAILED
    say(
        f"OK: {plural(report.images, 'image')} in {plural(report.shards, 'shard')}, "
        f"all hashes match ({speed})"
    )
    return FINISHED


def verify_run(run: Run, lost: Sequence[str] = ()) -> int:
    """Check every checkpoint of a run, and print what is wrong; the exit code. `lost` are those of
    a store that have not arrived whole. Raises NewerFormat where a newer version wrote the run or
    one of them."""
    folder, starts = run.path / "checkpoints", run.starts() if run.record else []
    samples = starts[-1].get("samples") if starts else None
    for _ in range(TRIES):
        results = [lasting_problem(run, folder / name, samples) for name in names_in(folder)]
        settled = [problem for problem in results if problem is not None]
        if settled or not results:
            break
    problems = [f"{place} is damaged in the store: its hashes do not match" for place in lost]
    problems += filter(None, settled)
    checked = plural(len(settled) + len(lost), "checkpoint")
    moving = len(results) - len(settled)
    more = f"; {moving} more that the run wrote or removed during the check" if moving else ""
    for problem in problems:
        say(problem)
    if problems:
        say(
            f"DAMAGED: {len(problems)} of {checked}{more}; 'stoker train' goes on from the newest "
            "one that is whole"
        )
        return FAILED
    say(f"OK: {checked}, all hashes match{more}")
    return FINISHED


def lasting_problem(run: Run, folder: Path, samples: object) -> str | None:
    """What is wrong with a checkpoint, empty where nothing is. None where there is no telling,
    because the run that trains writes or removes it. Raises NewerFormat."""
    for _ in range(TRIES):
        before = identity_of(folder / MARKER)
        if not (problem := problem_in(run, folder, samples)):
            break
        is_running = run.is_running  # first: what a run leaves that ends here is seen below
        after = identity_of(folder / MARKER)
        if not os.path.lexists(folder) or (is_running and not after):
            return None
        if before == after:
            break
    return problem


def problem_in(run: Run, folder: Path, samples: object) -> str:
    """What is wrong with the files of a checkpoint, or its place in the run; empty where nothing
    is. Raises NewerFormat where a newer version wrote it."""
    try:
        manifest = check_hashes(folder)
    except NewerFormat:
        raise
    except (StokerError, OSError) as error:
        return str(error)
    wrong = wrong_position(run, manifest, samples) if isinstance(samples, int) else ""
    return f"{folder}: {wrong}" if wrong else ""


def identity_of(path: Path) -> tuple[int, int] | None:
    """Tells a file from one that replaces it; None where there is none."""
    with suppress(OSError):
        facts = path.lstat()
        return facts.st_ino, facts.st_mtime_ns
    return None
