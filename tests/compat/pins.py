"""What must not change by itself, computed with the code as it is.

Bytes of packing and of batches, bits of the model after some steps, and the shape of every event.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from chaos.trainers import Trainers
from compat.kept import CODECS, FORMAT_1, HERE, PINNED, RANKS, RECIPES, bits_of, command, versions
from stoker.run.directory import Run
from stoker.run.events import Event

EPOCHS = 7
"""Of the pinned runs: about 20 steps, with an evaluation in mid-run."""
NESTED = ("parts", "on_cpu", "work", "sent", "environment")
"""Fields whose own keys are pinned too."""
OR_NULL = {("verdict", "without_s")}
"""Fields that are a number or null by how fast the machine is."""
CODECS_AND_TABLES = ("numpy", "opencv-python-headless", "pillow", "pyarrow", "simplejpeg")
"""What the bytes of a packed set and of a batch depend on beside our own code."""
Shape = dict[str, dict[str, list[str]]]


def pinned_runs() -> Iterator[tuple[str, str, str, int]]:
    """Name, recipe, codec and number of ranks of each pinned run."""
    for recipe in RECIPES:
        for codec in CODECS:
            for ranks in RANKS:
                yield f"{recipe}, {codec}, {ranks} ranks", recipe, codec, ranks


def raw_bytes() -> dict[str, Any]:
    """Hashes of what packing writes and of batches; see raw_bytes.py."""
    path = os.pathsep.join([str(HERE.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, str(HERE / "raw_bytes.py")],
        env={**os.environ, "PYTHONPATH": path, **PINNED},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    hashes: dict[str, Any] = json.loads(done.stdout)
    return hashes


def train(trainers: Trainers, recipe: str, codec: str, ranks: int, place: Path) -> Run:
    """One of the pinned runs, finished."""
    run, log = Run(place / "run"), place / "log"
    argv = command(FORMAT_1 / f"packed-{codec}", run.path, recipe, EPOCHS)
    if recipe == "adamw":
        argv += ["--label-smoothing", "0"]  # as when a command with --model took the defaults
    codes = trainers.train(argv, log, ranks=ranks)
    assert codes == [0] * ranks, log.read_text()[-3000:]
    return run


def events_of(run: Run) -> list[Event]:
    """All events of all ranks as they were written."""
    return [
        event
        for attempt in run.attempts()
        for rank in run.ranks(attempt)
        for event in run.attempt_events(attempt, rank)
    ]


def type_name(value: Any) -> str:
    """The JSON type of a value, whole numbers apart; of a list, with the types of its items."""
    if isinstance(value, list):
        return f"list of {'/'.join(sorted({type_name(item) for item in value})) or 'nothing'}"
    return "null" if value is None else type(value).__name__


def fields_of(event: Event) -> dict[str, str]:
    """The fields of an event, and the keys of those in NESTED, with their types."""
    fields = {name: type_name(value) for name, value in event.items()}
    for name in NESTED:
        if isinstance(event.get(name), dict):
            fields |= {f"{name}.{key}": type_name(value) for key, value in event[name].items()}
    for name in fields:
        if (event["kind"], name) in OR_NULL and fields[name] in ("float", "null"):
            fields[name] = "float or null"
    return fields


def shapes_of(events: Iterable[Event]) -> dict[str, Shape]:
    """By kind: the fields that all such events have, and those that some have, with all types."""
    by_kind: dict[str, list[dict[str, str]]] = {}
    for event in events:
        by_kind.setdefault(event["kind"], []).append(fields_of(event))
    shapes: dict[str, Shape] = {}
    for kind, rows in sorted(by_kind.items()):
        shape: Shape = {"always": {}, "sometimes": {}}
        for name in sorted({name for row in rows for name in row}):
            types = sorted({row[name] for row in rows if name in row})
            shape["always" if all(name in row for row in rows) else "sometimes"][name] = types
        shapes[kind] = shape
    return shapes


def all_pins() -> dict[str, Any]:
    """Everything that pins.json holds."""
    bits, events, trainers = {}, [], Trainers(PINNED)
    for name, recipe, codec, ranks in pinned_runs():
        with tempfile.TemporaryDirectory() as place:
            run = train(trainers, recipe, codec, ranks, Path(place))
            bits[name] = bits_of(run)
            events += events_of(run)
    trainers.close()
    libraries = {name: version(name) for name in CODECS_AND_TABLES}
    return {
        "versions": {**versions(), **libraries},
        **raw_bytes(),
        "bits": bits,
        "events": shapes_of(events),
    }
