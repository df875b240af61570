"""The grid as every engine gets it: a JSON file with one command a cell."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TRIES = 4
"""How often an engine that can try a cell again may do so."""


@dataclass(frozen=True)
class GridSpec:
    folder: Path
    """Where the engine may write."""
    workers: int
    commands: dict[str, list[str]]
    """The words of each cell's command, by the cell's name."""


def read_spec(path: str) -> GridSpec:
    fields = json.loads(Path(path).read_text("utf-8"))
    return GridSpec(Path(fields["folder"]), fields["workers"], fields["commands"])


def call(words: Sequence[str]) -> float:
    """Run a cell; returns its result, a number. Raises CalledProcessError where it failed."""
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return 1.0


def report(names: Sequence[str]) -> None:
    """The last line of an engine: the results that its own records have."""
    print(json.dumps({"cells": len(set(names)), "results": len(names)}), flush=True)


def spec_from_flags() -> GridSpec:
    return read_spec(sys.argv[1])
