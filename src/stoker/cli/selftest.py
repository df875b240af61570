"""stoker selftest: does everything that Stoker promises hold on this machine?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import date

from stoker.cli.flags import Parser
from stoker.cli.streams import check_json, write_figures
from stoker.errors import FAILED, FINISHED, BadRequest
from stoker.survive.stopping import UNCHANGED, listening, stops_at_once
from stoker.text import say

MINUTES = 10.0


def parser() -> Parser:
    flags = Parser(
        prog="stoker selftest",
        description="Check on this machine what Stoker promises: speed, data on the device, "
        "trouble, resumes, saves, lost ranks. Makes its own images. Prints a table in Markdown; "
        "what needs a GPU, or a second one, is not run without it. Exit code 1 if a check failed.",
    )
    add = flags.add_argument
    add(
        "--minutes",
        type=float,
        default=MINUTES,
        metavar="X",
        help=f"begin no check after this time [{MINUTES:g}]",
    )
    add("--only", default="", metavar="NAME,...", help="these checks, or groups of them [all]")
    add("--quick", action="store_true", help="small sizes, and nothing that compiles: for CI")
    add("--json", default="", metavar="FILE", help="also write the figures there")
    return flags


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    check(parsed)
    # Here, so that help and mistakes need neither torch nor OpenCV.
    from stoker.doctor.selftest.checks import SelftestOptions, selftest
    from stoker.doctor.selftest.rows import FAILED as ROW_FAILED
    from stoker.doctor.selftest.rows import Row
    from stoker.measure.environment import environment_here
    from stoker.show.machine.selftest import HEADER, counts, line, summary

    names = [name for name in parsed.only.split(",") if name]
    rows: list[Row] = []
    with listening() as stop, stops_at_once(stop, "the selftest", UNCHANGED):
        for row in selftest(SelftestOptions(parsed.minutes, parsed.quick, names)):
            say(*(() if rows else HEADER), line(row), wrap=False)
            rows.append(row)
    say(
        "",
        "For docs/hardware.md:",
        "",
        summary(rows, environment_here([]), date.today()),
        wrap=False,
    )
    if parsed.json:
        write_figures(parsed.json, {"rows": [row.as_data() for row in rows]})
    return FAILED if counts(rows)[ROW_FAILED] else FINISHED


def check(parsed: argparse.Namespace) -> None:
    """Refuse what cannot be run."""
    if not 0 < parsed.minutes < float("inf"):
        raise BadRequest(f"--minutes must be above 0, not {parsed.minutes:g}")
    check_json(parsed.json)
