"""Where a run is, read from outside while it trains, and where it can have been by its record.

Invariants: each event is read once: a look costs what was written since the last one. Only events
that training itself writes count as progress: measurements come from threads that go on while
training hangs.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import StokerError
from stoker.host.plain_file import open_plain
from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.schedule import Timeline
from stoker.run.directory import Run
from stoker.run.events import LONGEST_LINE
from stoker.run.kinds import event_of

KINDS = ("attempt", "step", "skipped", "evaluating", "evaluation", "checkpoint", "end")
MOST_BYTES = 1 << 26
"""Bytes that one look reads at most; the next look goes on from there."""


@dataclass(frozen=True)
class RunPosition:
    """How far a run is."""

    attempt: int
    events: int
    """Events of this attempt that are progress."""
    step: int
    """Steps that are done."""
    step_s: float
    """Median seconds between the latest steps; 0 where there are too few."""
    outcome: str
    """Of the attempt's `end` event; empty while there is none."""


class RunProgress:
    """Reads the newest attempt of a run, from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._run = Run(path)
        self._begin(0)

    def _begin(self, attempt: int) -> None:
        self._attempt, self._offset, self._events = attempt, 0, 0
        self._step, self._outcome = 0, ""
        self._times: deque[float] = deque(maxlen=50)

    def look(self) -> RunPosition | None:
        """The position now; None where the run has no attempt yet."""
        newest = max(self._run.attempts(), default=0)
        if not newest:
            return None
        if newest != self._attempt:
            self._begin(newest)
        for line in self._new_lines():
            self._take(line)
        gaps = [b - a for a, b in zip(self._times, list(self._times)[1:], strict=False)]
        pace = statistics.median(gaps) if len(gaps) > 3 else 0.0
        return RunPosition(self._attempt, self._events, self._step, pace, self._outcome)

    def _new_lines(self) -> list[bytes]:
        """The complete lines that were not read yet."""
        path = self._run.events_path(self._attempt, 0)
        with suppress(OSError, ValueError), open_plain(path) as file:
            file.seek(self._offset)
            data = file.read(MOST_BYTES)
            end = data.rfind(b"\n") + 1
            # A line without an end is damage, once it is longer than any event.
            end = end or (len(data) if len(data) > LONGEST_LINE else 0)
            self._offset += end
            return data[:end].splitlines()
        return []

    def _take(self, line: bytes) -> None:
        event = event_of(line) if len(line) <= LONGEST_LINE else None
        if event is None or event["kind"] not in KINDS:
            return
        self._events += 1
        if event["kind"] == "end":
            self._outcome = event["outcome"]
        elif event["kind"] == "attempt":
            self._step = event["step"]
        elif event["kind"] == "step":
            self._step = event["step"] + 1
            if isinstance(time := event.get("time"), float):
                self._times.append(time)


def wrong_position(run: Run, facts: Mapping[str, Any], samples: int) -> str:
    """Why a checkpoint with these facts cannot be one of a run over so many samples; empty where it
    can, or where the record of the run does not tell."""
    position, step = facts["position"], facts["step"]
    timelines = list(recorded_timelines(run, samples))
    if timelines and not any(timeline.has(position, step) for timeline in timelines):
        return f"this run has no step {step:,} at sample {position:,}"
    if facts.get("evaluated", 0) > position:
        return f"this run has no step {step:,} evaluated at sample {facts['evaluated']:,}"
    return ""


def recorded_timelines(run: Run, samples: int) -> Iterator[Timeline]:
    """The timeline of each recipe that the run has had; none where they cannot be read."""
    try:
        record = run.record
        starts = [(0, 0), *((change["position"], change["step"]) for change in record["changes"])]
        for entry, start in zip([record, *record["changes"]], starts, strict=True):
            values = entry["values"]
            recipe = Recipe(
                epochs=values["epochs"],
                batch_size=values["batch_size"],
                image_size=values["image_size"],
                warmup_epochs=0,
                phases=tuple(Phase(**phase) for phase in values.get("phases", ())),
            )
            yield Timeline.of(recipe, samples, *start)
    except (StokerError, LookupError, TypeError, AttributeError):
        return
