"""stoker verify SET: compute every hash of a packed set again and name what is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from stoker.cli.flags import Parser
from stoker.errors import FAILED, FINISHED
from stoker.recipe.resolve import parse_flag
from stoker.show.progress import progress
from stoker.survive.stopping import UNCHANGED, listening, stops_at_once
from stoker.text import plural, say, size


def parser() -> Parser:
    flags = Parser(
        prog="stoker verify",
        description="Read all of a packed set, compute every hash again and name what is damaged. "
        "Nothing is changed.",
    )
    add = flags.add_argument
    add("set", metavar="SET", help="a folder that 'stoker pack' wrote")
    add("--threads", default="0", metavar="N", help="threads that read; 0 takes the cores [0]")
    return flags


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    threads = parse_flag("threads", parsed.threads)

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
            f"({speed}); remove {parsed.set} and pack it again with 'stoker pack'"
        )
        return FAILED
    say(
        f"OK: {plural(report.images, 'image')} in {plural(report.shards, 'shard')}, "
        f"all hashes match ({speed})"
    )
    return FINISHED
