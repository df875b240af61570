"""stoker explain RUN: what happened, where the time went, what bound it."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.cli.flags import Parser
from stoker.errors import FINISHED
from stoker.run import Run
from stoker.show.explain import explain


def run(words: Sequence[str]) -> int:
    parser = Parser(prog="stoker explain", description="Explain a run from its directory.")
    parser.add_argument("run", metavar="RUN", help="a run directory, living or dead")
    for line in explain(Run(parser.parse(words).run)):
        print(line)
    return FINISHED
