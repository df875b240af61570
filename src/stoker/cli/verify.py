"""stoker verify SET: recompute every hash of a packed set and name what is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from stoker.cli.flags import Parser
from stoker.errors import FAILED, FINISHED, BadRequest
from stoker.show.progress import progress
from stoker.survive.stopping import UNCHANGED, listening, stops_at_once
from stoker.text import plural, say, size


def parser() -> Parser:
    made = Parser(
        prog="stoker verify",
        description="Read a packed set as a whole, recompute every hash, name what is damaged.",
    )
    made.add_argument("set", metavar="SET", help="a folder that 'stoker pack' made")
    made.add_argument("--threads", type=int, default=0, metavar="N", help="[cores]")
    return made


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    if parsed.threads < 0:
        raise BadRequest(f"--threads must be at least 0, not {parsed.threads}")

    # Here, so that help and mistakes need no pyarrow.
    from stoker.data.verify import verify

    bar = progress()

    def tell(done: int, total: int) -> None:
        bar.tell(done, total, f"{size(done)} of {size(total)} read")

    with closing(bar), listening() as stop, stops_at_once(stop, "verifying", UNCHANGED):
        verdict = verify(parsed.set, threads=parsed.threads, progress=tell)
    for line in [*verdict.problems, *(f"note: {note}" for note in verdict.notes)]:
        say(str(line))
    pace = f"{verdict.seconds:.1f} s, {size(verdict.bytes / max(verdict.seconds, 1e-9))}/s"
    if verdict.problems:
        files = len({problem.file for problem in verdict.problems})
        say(
            f"DAMAGED: {plural(len(verdict.problems), 'problem')} in {plural(files, 'file')} "
            f"({pace}); remove {parsed.set} and pack it again with 'stoker pack'"
        )
        return FAILED
    say(
        f"OK: {plural(verdict.images, 'image')} in {plural(verdict.shards, 'shard')}, "
        f"all hashes hold ({pace})"
    )
    return FINISHED
