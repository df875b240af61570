"""stoker verify SET: compute every hash again, of a packed set or a run's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.errors import FAILED, FINISHED
from stoker.recipe.resolve import parse_flag
from stoker.run.directory import Run
from stoker.run.progress import wrong_position
from stoker.show.progress import progress
from stoker.stores.location import location_of
from stoker.survive.manifest import names_in, problem_of, read_manifest
from stoker.survive.stopping import UNCHANGED, listening, stops_at_once
from stoker.text import plural, say, shown, size


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
    problems = [f"{place} is damaged in the store: its hashes do not match" for place in lost]
    names = names_in(folder)
    for name in names:
        problem = problem_of(folder / name)
        if not problem and isinstance(samples, int):
            wrong = wrong_position(run, read_manifest(folder / name), samples)
            problem = f"{folder / name}: {wrong}" if wrong else ""
        problems += [problem] if problem else []
    for problem in problems:
        say(problem)
    if problems:
        all_of_them = plural(len(names) + len(lost), "checkpoint")
        say(
            f"DAMAGED: {len(problems)} of {all_of_them}; 'stoker train' goes on from the newest "
            "one that is whole"
        )
        return FAILED
    say(f"OK: {plural(len(names), 'checkpoint')}, all hashes match")
    return FINISHED
