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


def run(words: Sequence[str]) -> int:
    parser = Parser(
        prog="stoker explain",
        description="Explain a run from its directory, or from the log of another program "
        "(pytorch/examples, timm, torchvision references).",
    )
    parser.add_argument("run", metavar="RUN", help="a run directory (running or ended), or a log")
    path = Path(parser.parse(words).run)
    is_log = path.exists() and not path.is_dir()
    for line in explain_log(read_log(path)) if is_log else explain(Run(path)):
        print(line)
    return FINISHED
