"""stoker bench SUBJECT: measure this machine, compare machines, measure again."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from stoker.errors import FINISHED, BadRequest
from stoker.text import say, shown

SUBJECTS = {
    "data": "how fast a packed set is read and decoded, cold and warm",
    "train": "how fast models train: every combination of some settings",
    "table": "results of several machines as one table: terminal, Markdown, CSV, HTML",
    "reproduce": "measure the rows of a result file again, and compare",
}
USAGE = (
    "usage: stoker bench SUBJECT ...\n\nMeasure the speed of this machine.\n\n"
    + "\n".join(f"  {name:<12} {help}" for name, help in SUBJECTS.items())
    + "\n\n'stoker bench SUBJECT --help' shows the flags of a subject."
)
INTERNAL = "cell"
"""What `stoker bench train` starts for each cell."""


def run(words: Sequence[str]) -> int:
    """Run one subject; returns its exit code. Raises BadRequest where none is named."""
    subject, rest = subject_of(words)
    return int(subject.run(rest))


def subject_of(words: Sequence[str]) -> tuple[Any, list[str]]:
    """The module of the subject that the words name, and the other words. Raises BadRequest where
    they name none."""
    known = (*SUBJECTS, INTERNAL)
    place = next((number for number, word in enumerate(words) if word in known), None)
    if place is not None:
        rest = [*words[:place], *words[place + 1 :]]
        return import_module(f"stoker.cli.bench_{words[place]}"), rest
    if "--help" in words or "-h" in words:
        say(*USAGE.splitlines(), wrap=False)
        raise SystemExit(FINISHED)
    other = next((word for word in words if not word.startswith("-")), None)
    if other is None:
        raise BadRequest(f"name what to bench: one of {', '.join(SUBJECTS)}")
    raise BadRequest(f"cannot bench '{shown(other)}': name one of {', '.join(SUBJECTS)}")
