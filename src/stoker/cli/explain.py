"""stoker explain RUN: what happened, where the time went and what limited it. RUN may be a log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.errors import FINISHED
from stoker.measure.logs.runs import read_log
from stoker.run.directory import Run
from stoker.show.explain import explain
from stoker.show.explain_log import explain_log
from stoker.text import say


def parser() -> Parser:
    made = Parser(
        prog="stoker explain",
        description="Explain a run from its directory, or from the log of another program "
        "(pytorch/examples, timm, torchvision references).",
    )
    made.add_argument("run", metavar="RUN", help="a run directory (running or ended), or a log")
    return made


def run(words: Sequence[str]) -> int:
    given = Path(parser().parse(words).run)
    is_log = given.exists() and not given.is_dir()
    for line in explain_log(read_log(given)) if is_log else explain(Run(given)):
        say(line)
    return FINISHED
