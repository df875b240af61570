"""stoker bench reproduce FILE: measure the rows of a result file again, and compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import Parser, add_trust_flag
from stoker.cli.streams import check_output
from stoker.errors import FAILED, FINISHED, BadRequest
from stoker.survive.stopping import listening, stops_at_once
from stoker.text import plural, say, shown

KEPT = "rows so far are in the new file: the same command goes on with the missing rows"


def parser() -> Parser:
    reproduce = Parser(
        prog="stoker bench reproduce",
        description="Measure every row of a result file again with the settings in it, and say for "
        "each whether it holds: whether the intervals overlap. Names first what differs in machine "
        "or software, and refuses another set. Exit code 1 where a row differs.",
    )
    add = reproduce.add_argument
    add("file", metavar="FILE", nargs="?", help="what 'stoker bench train' wrote")
    add("--data", default="", metavar="DATA", help="where the set is now [where it was]")
    add("--out", default="", metavar="OUT", help="the new result file [FILE with -again]")
    add_trust_flag(reproduce)
    return reproduce


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    if parsed.file is None:
        raise BadRequest("no result file is named: stoker bench reproduce FILE")
    file = Path(parsed.file)
    out = Path(parsed.out) if parsed.out else file.with_name(f"{file.stem}-again.json")
    if out.resolve() == file.resolve():
        raise BadRequest("--out is the file itself, whose rows would be lost: name another")
    check_output("--out", str(out))

    from stoker.plan.bench.reproduce import DIFFERS, plan_again, reproductions
    from stoker.plan.bench.result import read_result
    from stoker.plan.bench.session import continued, run_missing
    from stoker.show.bench.progress import difference_lines, reproduction_line

    with listening() as stop, stops_at_once(stop, "measuring", KEPT):
        before = read_result(file)
        plan, different = plan_again(before, parsed.data, trusted=parsed.trust_code)
        say(*difference_lines(different))
        now = continued(out, plan)
        for one in reproductions(before, now):
            say(reproduction_line(one))
        for row, so_far in run_missing(out, now, plan.cells):
            new = [one for one in reproductions(before, so_far) if one.now is row]
            say(*map(reproduction_line, new))
            now = so_far
    answers = [one.answer for one in reproductions(before, now)]
    count = answers.count(DIFFERS)
    say(f"{plural(len(answers), 'row')}, {count} of them different; the file: {shown(str(out))}")
    return FAILED if count else FINISHED
