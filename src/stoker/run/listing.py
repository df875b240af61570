"""Summaries of many runs, quickly, from run directories of anyone; and the state of a run.

Invariants: each run costs a bounded number of bytes, however long it trained: the summary of its
events where there is one, else their first and last, never all. No directory can make it wait or
fail: what cannot be read is said in `problem`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from stoker.host.plain_file import head_and_tail, read_plain
from stoker.run.directory import Run
from stoker.run.events import summary_path
from stoker.run.kinds import Event, event_of, is_span
from stoker.run.rows import time_of
from stoker.text import one_line

MOST_RUNS, MOST_ATTEMPTS = 10_000, 1_000
LARGEST_CELL = 1 << 20
LONGEST_TEXT = 200
"""Characters that are kept of a text."""
ENDS = 1 << 18
"""Bytes that are read at each end of the newest attempt's events, and four times as many of their
summary."""
OTHER_ENDS = 1 << 14
MOST_LAST = 3
"""Last lines of a file that are looked at: a killed writer leaves a torn one."""
RUNNING, STOPPED, KILLED = "running", "stopped", "killed"
FINISHED, FAILED, NEW = "finished", "failed", "new"
STATES = (NEW, RUNNING, STOPPED, KILLED, FINISHED, FAILED)
"""Every state of a run. A stopped one was told to end, and saved; a killed one wrote no end. The
same command goes on with both."""
ROLLED_BACK = "rolled back"
OUTCOMES = {"finished": FINISHED, "interrupted": STOPPED, ROLLED_BACK: KILLED}
RECENT_S = 300.0
"""A run without an end whose last event is younger runs, perhaps on another machine."""
_HOLDER = re.compile(r"process (\d{1,9}) on (.+)")
"""What a process writes into the lock of its run."""
_CELL = re.compile(r"[0-9a-f]{32}")
"""The folder of a cell in a grid of runs."""
_OTHER_KIND = re.compile(rb'\{"kind": ?"(?!(?:attempt|evaluation|verdict|end)")')
_NO_EVALUATION = re.compile(rb'\{"kind": ?"(?!(?:attempt|verdict|end)")')
"""Begin a line that is not needed for a summary; the second where the end says what was best."""


@dataclass(frozen=True)
class RunSummary:
    path: Path
    name: str
    model: str = ""
    state: str = NEW
    best: float | None = None
    """Best top-1 share."""
    hours: float = 0.0
    """In all attempts, from the first event of each to its last."""
    dollars: float | None = None
    """What all attempts cost, as far as rank 0 knew; None where it knew no price."""
    limit: str = ""
    """What limits training by the newest verdict; empty where there is none yet."""
    verdict: str = ""
    """The same in words."""
    epochs_done: float | None = None
    epochs: float | None = None
    """How many are planned."""
    data: str = ""
    """The path of the data set."""
    recipe: str = ""
    ranks: int | None = None
    """World size of the newest attempt."""
    last: float | None = None
    """When the last event was written, in seconds since 1970."""
    problem: str = ""
    """Why the record cannot be read; empty where it can."""


def runs_below(folder: Path) -> Iterator[Path]:
    """The run directories in a folder and in the cells of its grids, by name; or the folder itself
    if it is a run. At most MOST_RUNS."""
    return islice(_runs_below(folder), MOST_RUNS)


def _runs_below(folder: Path) -> Iterator[Path]:
    if (folder / "run.json").is_file():
        yield folder
        return
    yield from cell_runs(folder)
    for name in names_in(folder):
        if os.path.lexists(folder / name / "run.json"):
            yield folder / name
        else:
            yield from cell_runs(folder / name)


def cell_runs(grid: Path) -> Iterator[Path]:
    """The runs in the cells of a grid, which a sweep or a study of tickets made."""
    cells = grid / "cells"
    for name in names_in(cells):
        if _CELL.fullmatch(name) and os.path.lexists(cells / name / "work" / "run" / "run.json"):
            yield cells / name / "work" / "run"


def names_in(folder: Path) -> list[str]:
    """The names in a folder, in order; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))[:MOST_RUNS]  # noqa: PTH208
    except OSError:
        return []


def name_of(path: Path) -> str:
    """The name of a run: that of its directory, also of `.` and `runs/x/..`; in a grid, the first
    letters of its cell and the settings of that."""
    cell = path.parent.parent
    if (path.parent.name, path.name) == ("work", "run") and _CELL.fullmatch(cell.name):
        label = ""
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            label = text_of(json.loads(read_plain(cell / "cell.json", LARGEST_CELL))["label"])
        return f"{cell.name[:8]} {label}".rstrip()
    return path.name if path.name not in ("", "..") else path.resolve().name


def text_of(value: Any) -> str:
    """A text of a file, cut; empty where it is none."""
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""


def summary_of(path: Path, now: float | None = None) -> RunSummary:
    """The summary of a run directory. Never raises for what is in it."""
    summary = RunSummary(path, name_of(path))
    try:
        record = json.loads(read_plain(path / "run.json").decode())
        model = str(record["values"]["model"])[:LONGEST_TEXT]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        return replace(summary, problem=one_line(f"run.json: {error}") or "run.json")
    data, recipe = text_of(record.get("data")), text_of(record.get("recipe"))
    summary = replace(summary, model=model, data=data, recipe=recipe)
    run = Run(path)
    try:
        numbers = run.attempts()[-MOST_ATTEMPTS:]
    except (OSError, ValueError) as error:
        return replace(summary, problem=one_line(str(error)))
    attempts = [ends_of(run, n, is_newest=n == numbers[-1]) for n in numbers]
    newest = attempts[-1] if attempts else []
    end = next((event for event in reversed(newest) if event["kind"] == "end"), None)
    last = max(times_of(newest), default=None)
    return replace(
        summary,
        state=state_of(run, end, last, time.time() if now is None else now),
        best=best_of(path, newest),
        hours=round(sum(map(hours_of, attempts)), 4),
        last=last,
        **training_facts(attempts),
    )


def training_facts(attempts: Sequence[list[Event]]) -> dict[str, Any]:
    """What the newest attempt that trained, and the newest verdict, say."""
    facts: dict[str, Any] = {}
    for events in attempts:
        start = next((event for event in events if event["kind"] == "attempt"), None)
        if start:
            done = max(map(position_of, events))
            facts["epochs_done"] = done / start["samples"] if start["samples"] else None
            facts["epochs"] = start["epochs"] or None
            facts["ranks"] = start["world"]
            dollars = dollars_until(start, max(times_of(events), default=None))
            facts["dollars"] = None if dollars is None else round(dollars, 4)
        for event in events:
            if event["kind"] == "verdict":
                facts["limit"], facts["verdict"] = text_of(event["limit"]), text_of(event["words"])
    return facts


def ends_of(run: Run, attempt: int, *, is_newest: bool) -> list[Event]:
    """The events of an attempt's rank 0 that a summary needs, and its first and last: from the
    summary of the events, and from the end of the events where that says less. Evaluations are
    needed of the newest attempt alone: its start has the best of those before."""
    file, most = run.events_path(attempt, 0), ENDS if is_newest else OTHER_ENDS
    events: list[Event] = []
    try:
        with suppress(OSError, ValueError):
            events = needed_events(*head_and_tail(summary_path(file), 4 * most), is_newest)
        span: Any = events[-1].get("span") if events else None
        begin = span[1] if is_span(span) else 0
        if begin < file.stat().st_size:
            events += needed_events(*head_and_tail(file, most, begin), is_newest)
    except (OSError, ValueError):
        return events
    return events


def position_of(event: Event) -> int:
    """Samples up to the end of a step or of a row of steps; where another event was written."""
    if event["kind"] == "steps":
        return int(event["until"])
    return int(event.get("position", 0) + (event["batch"] if event["kind"] == "step" else 0))


def needed_events(head: list[bytes], tail: list[bytes], evaluations: bool) -> list[Event]:
    """The first event, the last ones up to one that says where and when it was written, and those
    between that a summary needs."""
    lines, last = [*head, *tail], list[Event]()
    for _ in range(min(MOST_LAST, len(lines) - 1)):
        if event := event_of(lines.pop()):
            last.insert(0, event)
            if position_of(event) and time_of(event):
                break
    has_best = any(event["kind"] == "end" and "best" in event for event in last)
    is_other = (_OTHER_KIND if evaluations and not has_best else _NO_EVALUATION).match
    between = (line for line in lines[1:] if not is_other(line))
    first = [event_of(line) for line in [*lines[:1], *between]]
    return [event for event in [*first, *last] if event]


def times_of(events: Iterable[Event]) -> list[float]:
    return [at for event in events if (at := time_of(event))]


def hours_of(events: Sequence[Event]) -> float:
    """Hours from the first event to the last."""
    times = times_of(events)
    return (max(times) - min(times)) / 3600 if times else 0.0


def state_of(run: Run, end: Event | None, last: float | None, now: float) -> str:
    """Whether a run trains, and how it ended if it does not, as one of STATES: from the `end` event
    of its newest attempt, and when its last event was written."""
    if run.is_running:
        return RUNNING
    if end and end["outcome"] != ROLLED_BACK:
        return OUTCOMES.get(end["outcome"], FAILED)
    if last is None:
        return NEW
    # After a roll-back the same process begins the next attempt.
    return RUNNING if now - last < RECENT_S and not is_holder_gone(run) else KILLED


def is_holder_gone(run: Run) -> bool:
    """Whether the run was trained last by a process of this machine that is gone."""
    with suppress(OSError, ValueError):
        holder = _HOLDER.fullmatch(read_plain(run.path / "lock", 500).decode())
        if holder and holder[2] == socket.gethostname():
            try:
                os.kill(int(holder[1]), 0)  # sends nothing: it asks whether the process is there
            except ProcessLookupError:
                return True
    return False


def dollars_until(start: Event | None, until: float | None) -> float | None:
    """What a run had cost at a time of its newest attempt: what rank 0 counted when the attempt
    began, and the time since then at the price of all machines. None where no price was known."""
    if start is None or "spent" not in start or "per_hour" not in start:
        return None
    began = time_of(start)
    hours = max((until or 0.0) - began, 0.0) / 3600 if began else 0.0
    return float(max(start["spent"], 0.0) + hours * max(start["per_hour"], 0.0))


def best_of(path: Path, events: Sequence[Event]) -> float | None:
    """The best top-1 share that the events and the last checkpoint tell of."""
    shares = [event["top1"] / event["images"] for event in events if event["kind"] == "evaluation"]
    shares += [e["best"] for e in events if e["kind"] in ("attempt", "end") and "best" in e]
    with suppress(OSError, ValueError, TypeError, RecursionError):
        name = read_plain(path / "last", 100).decode().strip()
        if name.replace("-", "").isalnum():
            file = path / "checkpoints" / name / "manifest.json"
            shares.append(number(json.loads(read_plain(file))))
    return max((share for share in shares if 0 <= share <= 1), default=None)


def number(manifest: Any) -> float:
    best = manifest.get("best", -1.0) if isinstance(manifest, dict) else -1.0
    return float(best) if type(best) in (int, float) else -1.0
