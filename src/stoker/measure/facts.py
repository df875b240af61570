"""What was measured in some steps of a run, all ranks together: all that a verdict needs.

Invariants: means over the steps, never typical ones: a loader that falls behind waits long now and
then, and not at all in between. The first steps of an attempt are not the run: they fill queues and
choose kernels.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.measure.spans import ONCE
from stoker.run import Event, Run

WARM_UP = 3
"""Steps that an attempt takes to get going."""
WORTH_NAMING = 0.05
"""The share of the time for which a machine must be held up to be asked about it."""
HOG_CORES = 0.3
SLOWER = 1.10
"""A rank that takes this many times as long as the others is slow."""


@dataclass(frozen=True)
class RankFacts:
    """One rank: means of a step."""

    rank: int = 0
    host: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each part."""
    on_cpu: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each part for which the training thread was running; empty where none can tell."""
    work: Mapping[str, float] = field(default_factory=dict)
    """Seconds of loading threads: `read`, `decode`, and `cpu` of both."""
    cpu_s: float = 0.0
    """CPU time of the process."""
    sent_bytes: float = 0.0
    """Gradients that it exchanged."""
    sent_s: float = 0.0
    """For so long some of them were on their way."""
    slow_share: float = 0.0
    """The share of steps in which it was slower than the others."""
    trouble: str = ""
    """What its machine says about itself: throttled, stolen from."""

    @property
    def step_s(self) -> float:
        return sum(self.parts.values())

    @property
    def own_s(self) -> float:
        """What it takes until its gradients are there, saving apart."""
        return self.step_s - self.parts.get("exchange", 0.0) - self.parts.get("checkpoint", 0.0)


@dataclass(frozen=True)
class Facts:
    """Some steps of all ranks."""

    ranks: tuple[RankFacts, ...]
    steps: int
    images: float = 0.0
    """A step, all ranks together."""
    threads: int = 1
    """Loading threads of a rank."""
    cores: int = 0
    """That the ranks of a machine share; 0 where that is not known."""
    local_world: int = 1
    capacity: float | None = None
    """Bytes a second that a rank can send and receive, measured before the first step."""
    fixed_s: float | None = None
    """What forward and backward take however few the images are."""
    late_share: float = 0.0
    """How often the interpreter lock was not free for whoever asked."""
    hog: str = ""
    """The thread that uses the CPU though it is not ours."""
    delay_s: float = 0.0
    """How long the training thread waited for a core, a step."""

    @property
    def step_s(self) -> float:
        return statistics.fmean(rank.step_s for rank in self.ranks)

    def part(self, *names: str) -> float:
        """Seconds a step of some parts, the mean over the ranks."""
        return statistics.fmean(
            sum(rank.parts.get(name, 0.0) for name in names) for rank in self.ranks
        )

    def work(self, *names: str) -> float:
        """Seconds a step of a loading thread, where they share the work evenly."""
        return statistics.fmean(
            sum(rank.work.get(name, 0.0) for name in names) / self.threads for rank in self.ranks
        )

    @property
    def transfer_s(self) -> float:
        """What the exchange takes when all are there: the last rank to come waits only for that."""
        return min(rank.parts.get("exchange", 0.0) for rank in self.ranks)

    @property
    def cpu_floor_s(self) -> float:
        """No step of a machine can be quicker than its CPU time over its cores."""
        if not self.cores:
            return 0.0
        return statistics.fmean(r.cpu_s for r in self.ranks) * self.local_world / self.cores


def mean(rows: Sequence[Event], key: str) -> dict[str, float]:
    """The mean of each number in a group of numbers that events carry."""
    names = {name for row in rows for name in row.get(key, {}) if name not in ONCE}
    return {
        name: statistics.fmean(row.get(key, {}).get(name, 0.0) for row in rows) for name in names
    }


def own_seconds(event: Event) -> float:
    parts: dict[str, float] = event["parts"]
    return sum(s for part, s in parts.items() if part not in ("exchange", "checkpoint", *ONCE))


def slow_shares(steps: Mapping[int, Sequence[Event]]) -> dict[int, float]:
    """For each rank, in which share of the steps it was slower than the others' median."""
    if len(steps) < 2:
        return {}
    own = {rank: [own_seconds(event) for event in events] for rank, events in steps.items()}
    shares = {}
    for rank, mine in own.items():
        others = zip(*(seconds for other, seconds in own.items() if other != rank), strict=False)
        slow = [a > SLOWER * statistics.median(b) for a, b in zip(mine, others, strict=False)]
        shares[rank] = statistics.fmean(slow) if slow else 0.0
    return shares


def added(one: Mapping[str, float], two: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + two.get(name, 0.0) for name in {*one, *two} - {*ONCE}}


def facts_of(seen: Seen) -> Facts | None:
    """The facts of the same steps of each rank; None where there are none."""
    steps, starts, probes = seen.steps, seen.starts, seen.probes
    if not steps or not all(steps.values()):
        return None
    slow = slow_shares(steps)
    first = starts[min(starts)]
    probed = [reading for rank in steps for reading in probes.get(rank, ())]
    ranks = tuple(
        RankFacts(
            rank=rank,
            host=starts[rank]["environment"].get("host", ""),
            parts=added(
                mean(events, "parts"),
                {part: s / len(events) for part, s in seen.rest.get(rank, {}).items()},
            ),
            on_cpu=mean(events, "on_cpu"),
            work=mean(events, "work"),
            cpu_s=statistics.fmean(event.get("cpu_s", 0.0) for event in events),
            sent_bytes=mean(events, "sent").get("bytes", 0.0),
            sent_s=mean(events, "sent").get("seconds", 0.0),
            slow_share=slow.get(rank, 0.0),
            trouble=trouble_of(probes.get(rank, ())),
        )
        for rank, events in sorted(steps.items())
    )
    return Facts(
        ranks=ranks,
        steps=min(len(events) for events in steps.values()),
        images=statistics.fmean(event["batch"] for event in steps[min(steps)]),
        threads=first.get("loading_threads", 1),
        cores=first["environment"].get("cores", 0),
        local_world=first.get("local_world", 1),
        capacity=first.get("capacity"),
        fixed_s=seen.fixed_s,
        late_share=mean_of(probed, "lock", "late_share"),
        hog=hog_of(probed),
        delay_s=mean_of(probed, "main", "delay") * ranks[0].step_s,
    )


def mean_of(readings: Sequence[Mapping[str, Any]], group: str, name: str) -> float:
    """The mean of a figure of the probes, over those that have it."""
    found = [r[group][name] for r in readings if r.get(group, {}).get(name) is not None]
    return statistics.fmean(found) if found else 0.0


def trouble_of(readings: Sequence[Mapping[str, Any]]) -> str:
    """What a machine says about itself that explains a slow rank."""
    whole = sum(reading.get("seconds", 0.0) for reading in readings)
    stopped = sum(reading.get("cpu", {}).get("throttled_s", 0.0) for reading in readings)
    stolen = mean_of(readings, "cpu", "steal")
    found = []
    if whole and stopped > WORTH_NAMING * whole:
        found.append(f"its CPU quota stopped it for {stopped / whole:.0%} of the time")
    if stolen > WORTH_NAMING:
        found.append(f"its hypervisor gave {stolen:.0%} of the CPU to others")
    reasons = {
        reason
        for reading in readings
        for gpu in reading.get("gpus", ())
        for reason, share in gpu.get("throttles", {}).items()
        if share > WORTH_NAMING
    }
    if reasons:
        found.append(f"its GPU was slowed down ({', '.join(sorted(reasons))})")
    return "; ".join(found)


def hog_of(readings: Sequence[Mapping[str, Any]]) -> str:
    """The Python thread, of those that are not ours, that uses most of a core."""
    for reading in reversed(readings):
        for thread in reading.get("threads", ()):
            ours = thread["name"] == "MainThread" or thread["name"].startswith("stoker-")
            if thread["python"] and not ours and thread["cores"] > HOG_CORES:
                return f"the thread '{thread['name']}' used {thread['cores']:.2f} of a core"
    return ""


@dataclass
class Seen:
    """What the events of an attempt say about some of its steps, rank by rank."""

    first: int = 0
    last: int | None = None
    """Steps from `first` on, up to and without `last`."""
    steps: dict[int, list[Event]] = field(default_factory=dict)
    starts: dict[int, Event] = field(default_factory=dict)
    probes: dict[int, list[Event]] = field(default_factory=dict)
    rest: dict[int, dict[str, float]] = field(default_factory=dict)
    """Time of the attempt that belongs to no step: the last evaluation, the last save."""
    fixed_s: float | None = None

    def add(self, rank: int, event: Event) -> None:
        kind = event["kind"]
        if kind == "attempt":
            self.starts[rank] = event
        elif kind in ("end", "skipped") and self.last is None:
            self.rest[rank] = added(self.rest.get(rank, {}), event["parts"])
        elif kind == "fixed_cost":
            self.fixed_s = event["fixed_s"]
        elif kind in ("step", "probe") and rank in self.starts:
            step = event["step"]
            early = step < max(self.starts[rank]["step"] + WARM_UP, self.first)
            if not early and (self.last is None or step < self.last):
                kept = self.steps if kind == "step" else self.probes
                kept.setdefault(rank, []).append(event)

    def facts(self) -> Facts | None:
        return facts_of(self)


def facts_of_run(run: Run, attempt: int, first: int = 0, last: int | None = None) -> Facts | None:
    """The facts of some steps of an attempt, from the run directory."""
    seen = Seen(first, last)
    for rank in run.ranks(attempt):
        for event in run.attempt_events(attempt, rank):
            seen.add(rank, event)
    return seen.facts()
