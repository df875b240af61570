"""Summaries of many runs, quickly, from run directories of anyone.

Invariants: each run costs a bounded number of bytes, however long it trained: the first and the
last events of an attempt, never all. No directory can make it wait or fail: what cannot be read is
said in `problem`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.host.plain_file import head_and_tail, read_plain
from stoker.run.directory import Run
from stoker.run.kinds import Event, event_of
from stoker.text import one_line

MOST_RUNS, MOST_ATTEMPTS = 10_000, 1_000
LARGEST_RECORD, LARGEST_MANIFEST = 1 << 24, 1 << 24
ENDS = 1 << 18
"""Bytes that are read at each end of the newest attempt's events."""
OTHER_ENDS = 1 << 14
RUNNING, STOPPED, FINISHED, FAILED, NEW = "running", "stopped", "finished", "failed", "new"
OUTCOMES = {"finished": FINISHED, "interrupted": STOPPED, "rolled back": STOPPED}
RECENT_S = 300.0
"""A run without an end whose last event is younger runs, perhaps on another machine."""


@dataclass(frozen=True)
class RunSummary:
    path: Path
    model: str = ""
    state: str = NEW
    best: float | None = None
    """Best top-1 share."""
    hours: float = 0.0
    """In all attempts, from the first event of each to its last."""
    dollars: float | None = None
    """What all attempts cost, as far as rank 0 knew; None where it knew no price."""
    last: float | None = None
    """When the last event was written, in seconds since 1970."""
    problem: str = ""
    """Why the record cannot be read; empty where it can."""


def runs_below(folder: Path) -> Iterator[Path]:
    """The run directories in a folder, by name, or the folder itself if it is one."""
    if (folder / "run.json").is_file():
        yield folder
        return
    try:
        names = sorted(os.listdir(folder))[:MOST_RUNS]  # noqa: PTH208
    except OSError:
        return
    for name in names:
        if os.path.lexists(folder / name / "run.json"):
            yield folder / name


def summary_of(path: Path, now: float | None = None) -> RunSummary:
    """The summary of a run directory. Never raises for what is in it."""
    try:
        record = json.loads(read_plain(path / "run.json", LARGEST_RECORD).decode())
        model = str(record["values"]["model"])[:200]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        return RunSummary(path, problem=one_line(f"run.json: {error}") or "run.json")
    run, summary = Run(path), RunSummary(path, model)
    try:
        attempts = run.attempts()[-MOST_ATTEMPTS:]
    except (OSError, ValueError) as error:
        return replace(summary, problem=one_line(str(error)))
    hours, events = 0.0, list[Event]()
    for attempt in attempts:
        events = ends_of(run, attempt, ENDS if attempt == attempts[-1] else OTHER_ENDS)
        times = [at for event in events if (at := time_of(event)) is not None]
        hours += (max(times) - min(times)) / 3600 if times else 0.0
    last = max((at for event in events if (at := time_of(event)) is not None), default=None)
    return replace(
        summary,
        state=state_of(run, events, last, time.time() if now is None else now),
        best=best_of(path, events),
        hours=round(hours, 4),
        dollars=dollars_of(events),
        last=last,
    )


def ends_of(run: Run, attempt: int, most: int) -> list[Event]:
    """The first and the last events of an attempt's rank 0."""
    try:
        head, tail = head_and_tail(run.events_path(attempt, 0), most)
    except (OSError, ValueError):
        return []
    events = (event_of(line) for line in [*head, *tail])
    return [event for event in events if event]


def time_of(event: Event) -> float | None:
    at = event.get("time")
    return float(at) if isinstance(at, int | float) and 0 < at < 1e11 else None


def state_of(run: Run, events: list[Event], last: float | None, now: float) -> str:
    """Whether a run trains, and how it ended if it does not."""
    if run.is_running:
        return RUNNING
    if end := next((event for event in reversed(events) if event["kind"] == "end"), None):
        return OUTCOMES.get(end["outcome"], FAILED)
    if last is None:
        return NEW
    return RUNNING if now - last < RECENT_S else STOPPED


def dollars_of(events: list[Event]) -> float | None:
    """What a run had cost at its last event: what rank 0 counted when its last attempt began, and
    the time since then at the price of all machines. None where no price was known."""
    start = next((event for event in events if event["kind"] == "attempt"), {})
    if "spent" not in start or "per_hour" not in start:
        return None
    began = time_of(start) or 0.0
    last = max((at for event in events if (at := time_of(event)) is not None), default=began)
    hours = max(last - began, 0.0) / 3600 if began else 0.0
    return float(round(max(start["spent"], 0.0) + hours * max(start["per_hour"], 0.0), 4))


def best_of(path: Path, events: list[Event]) -> float | None:
    """The best top-1 share that the events and the last checkpoint tell of."""
    shares = [event["top1"] / event["images"] for event in events if event["kind"] == "evaluation"]
    shares += [e["best"] for e in events if e["kind"] in ("attempt", "end") and "best" in e]
    with suppress(OSError, ValueError, TypeError, RecursionError):
        name = read_plain(path / "last", 100).decode().strip()
        if name.replace("-", "").isalnum():
            file = path / "checkpoints" / name / "manifest.json"
            shares.append(number(json.loads(read_plain(file, LARGEST_MANIFEST))))
    return max((share for share in shares if 0 <= share <= 1), default=None)


def number(manifest: Any) -> float:
    best = manifest.get("best", -1.0) if isinstance(manifest, dict) else -1.0
    return float(best) if type(best) in (int, float) else -1.0
