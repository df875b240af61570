"""stoker explain RUN: what happened, where the time went and what limited it. RUN may be a log.

Several runs are one table, with what differs between them below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import Parser, add_price_flag, check_price
from stoker.cli.places import run_folders
from stoker.errors import BAD_REQUEST, FINISHED
from stoker.measure.logs.runs import read_log
from stoker.price.hourly import HourlyPrice
from stoker.run.directory import Run
from stoker.show.compare import header, row
from stoker.show.differences import difference_lines
from stoker.show.explain import explain
from stoker.show.explain_log import explain_log
from stoker.text import say


def parser() -> Parser:
    made = Parser(
        prog="stoker explain",
        description="Explain a run from its directory, or from the log of another program "
        "(pytorch/examples, timm, torchvision references).",
    )
    help = "a run directory or s3://BUCKET/RUN (running or ended), or a log; several are shown as "
    help += "a table, with what differs between them"
    made.add_argument("runs", metavar="RUN", nargs="+", help=help)
    add_price_flag(made, "dollars for an hour of each machine [what the run recorded]")
    return made


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    given_price = parsed.price_per_hour
    check_price(given_price)
    price = None
    if given_price is not None:
        from stoker.price.machine_here import price_here

        price = price_here(given_price, "off")
    runs = run_folders(parsed.runs)
    if len(runs) > 1:
        return show_table(runs, price)
    given = Path(runs[0])
    is_log = given.exists() and not given.is_dir()
    say(*(explain_log(read_log(given)) if is_log else explain(Run(given), price)))
    return FINISHED


def show_table(runs: Sequence[str], price: HourlyPrice | None) -> int:
    """Print a line for each run, and what differs. The exit code is 2 if none can be read."""
    say(header(), wrap=False)
    readable = []
    for path in runs:
        line, traits = row(Path(path))
        say(line, wrap=False)
        readable += [traits] if traits else []
    say(*difference_lines(readable, price), wrap=False)
    return FINISHED if readable else BAD_REQUEST
