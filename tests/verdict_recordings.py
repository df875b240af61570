"""Recorded runs of the rows of chaos/verdicts.toml: the events of all ranks, to be judged again.

    data/verdict_recordings/recordings.toml            one entry a run
    data/verdict_recordings/slow-disk/1.jsonl.xz       its events, one a line, with their rank

An entry has `row`, `file`, `date`, `commit` (of the code that ran), `without_s` (the step time
that was measured without the fault), `others` (cores that other processes used during the run, and
that the hypervisor gave to others; absent where that was not measured). An entry whose verdict is
wrong has a `reason`, and `disturbed = true` where that is a busy neighbour. Every run that was made
is kept, right or wrong. chaos/record_verdicts.py writes them; reasons are added by hand.
"""

from __future__ import annotations

import json
import lzma
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stoker.measure.facts import Facts
from stoker.measure.facts_from_events import AttemptSums
from stoker.run.directory import Run
from stoker.run.events import Event
from verdict_rows import Choice, Row, with_fault, without_fault

FOLDER = Path(__file__).parent / "data" / "verdict_recordings"
MACHINE = "2 shared x86-64 cores, no GPU"
DIGITS = 6
"""Significant digits of a number that is kept."""
ENVIRONMENT = ("stoker", "python", "torch", "host", "device", "threads", "cores")
KEPT: dict[str, tuple[str, ...]] = {
    "attempt": (
        *("step", "position", "world", "local_world", "capacity", "send_cpu"),
        *("loading_threads", "steps", "samples", "epochs", "environment"),
    ),
    "step": ("step", "batch", "images", "work", "sent", "parts", "on_cpu", "cores"),
    "probe": (
        *("step", "seconds", "cpu", "pressure", "main", "memory", "disk", "network"),
        *("lock", "threads", "gpus"),
    ),
    "larger_batch": ("step", "seconds", "larger_s"),
    "skipped": ("step", "parts"),
    "end": ("step", "outcome", "parts"),
}
"""The kinds of events that are kept, and what is kept of each: nothing that names a machine."""


@dataclass(frozen=True)
class Recording:
    """One entry of the index."""

    row: str
    file: str
    date: str
    commit: str
    without_s: float
    others: float | None = None
    disturbed: bool = False
    reason: str = ""

    def events(self) -> Iterator[tuple[int, Event]]:
        """The rank and the event of each line."""
        with lzma.open(FOLDER / self.file, "rt", encoding="utf-8") as lines:
            for line in lines:
                event = json.loads(line)
                yield event.pop("rank"), event

    def entry(self) -> str:
        """The entry as it stands in the index."""
        lines = [
            "[[recording]]",
            *(f"{name} = {json.dumps(getattr(self, name))}" for name in ("row", "file")),
            f"date = {json.dumps(self.date)}",
            f"commit = {json.dumps(self.commit)}",
            f"without_s = {self.without_s!r}",
        ]
        if self.others is not None:
            lines.append(f"others = {self.others:.2f}")
        if self.disturbed:
            lines.append("disturbed = true")
        if self.reason:
            lines.append(f"reason = {json.dumps(self.reason)}")
        return "\n".join(lines) + "\n"


def facts_of_events(events: Iterable[tuple[int, Event]], choice: Choice) -> Facts | None:
    """The facts of the chosen steps, as `facts_of_run` has them; None where there are none."""
    gathered = AttemptSums(choice)
    for rank, event in events:
        gathered.add(rank, event)
    return gathered.facts()


def neighbour_share(row: Row, events: list[tuple[int, Event]]) -> float:
    """The largest share of the time that a busy neighbour took, of what the events tell: the
    training thread waited for a core, the hypervisor gave the core away, or the thread was off the
    CPU in the backward pass, where no row but the one of the lock makes it wait."""
    probes = [event for _, event in events if event["kind"] == "probe"]
    shares = [probe["main"].get("delay", 0.0) for probe in probes]
    shares += [probe["cpu"].get("steal", 0.0) for probe in probes]
    for choice in (with_fault, without_fault):
        facts = facts_of_events(events, partial(choice, row))
        for rank in facts.ranks if facts and "lock" not in row.name else ():
            shares.append(1 - rank.on_cpu["backward"] / rank.parts["backward"])
    return max(shares)


def recordings(folder: Path = FOLDER) -> list[Recording]:
    """All entries of the index; raises where one has a field that is not known."""
    index = folder / "recordings.toml"
    if not index.exists():
        return []
    entries = tomllib.loads(index.read_text(encoding="utf-8")).get("recording", [])
    return [Recording(**entry) for entry in entries]


def slug(name: str) -> str:
    """The folder of a row: 100-mbit-s for 100 Mbit/s."""
    letters = "".join(letter if letter.isalnum() else " " for letter in name.lower())
    return "-".join(letters.split())


def rounded(value: Any) -> Any:
    """A value of an event with `DIGITS` significant digits in each of its numbers."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


def compact(events: Iterable[tuple[int, Event]]) -> Iterator[Event]:
    """The events that a verdict is made of, without anything that names the machine."""
    hosts: dict[str, str] = {}
    for rank, event in events:
        kind = event["kind"]
        if kind not in KEPT:
            continue
        kept = {name: event[name] for name in KEPT[kind] if name in event}
        if kind == "attempt":
            known = event["environment"]
            kept["environment"] = {name: known[name] for name in ENVIRONMENT if name in known}
            host = hosts.setdefault(known.get("host", ""), f"host-{len(hosts)}")
            kept["environment"]["host"] = host
        yield {"rank": rank, "kind": kind, **rounded(kept)}


def write_events(run: Run, path: Path) -> None:
    """Keep the events of the first attempt of a run, the same bytes for the same events."""
    events = ((rank, e) for rank in run.ranks(1) for e in run.attempt_events(1, rank))
    lines = (json.dumps(event, separators=(",", ":")) + "\n" for event in compact(events))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress("".join(lines).encode(), preset=9))


def append(recording: Recording, folder: Path = FOLDER) -> None:
    """Add an entry to the index."""
    index = folder / "recordings.toml"
    if not index.exists():
        index.write_text(f'machine = "{MACHINE}"\n', encoding="utf-8")
    with index.open("a", encoding="utf-8") as file:
        file.write("\n" + recording.entry())
