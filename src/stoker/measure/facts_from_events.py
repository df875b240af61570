"""From the events of an attempt to the facts of its steps.

Invariants: sums are kept, not events: a run may have a million steps. The first steps of an attempt
are not the run: they fill queues and choose kernels. What comes once is no part of any step. Events
of older runs, which say less, are read too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.measure.facts import LARGER, SLOWER, Facts, RankFacts
from stoker.measure.spans import ONCE
from stoker.run.directory import Run
from stoker.run.events import Event

WARM_UP = 3
"""Steps that an attempt takes to get going."""
WORTH_NAMING = 0.05
"""The share of the time for which a machine must be held up to be asked about it."""
HOG_CORES = 0.3
GROUPS = ("parts", "on_cpu", "work", "sent")
"""Numbers of a step that are summed up, name by name."""
NOT_OWN = ("exchange", "checkpoint", *ONCE)


@dataclass
class RankSums:
    """The steps of one rank, summed up."""

    steps: int = 0
    images: float = 0.0
    sums: dict[str, dict[str, float]] = field(default_factory=dict)
    own_s: dict[int, float] = field(default_factory=dict)
    """What each step took until its gradients were there."""
    rest: dict[str, float] = field(default_factory=dict)
    """Time of the attempt that belongs to no step: the last evaluation, the last save."""
    probes: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        kind = event["kind"]
        if kind == "step":
            self.steps += 1
            self.images += event["batch"]
            for group in GROUPS:
                add_up(self.sums.setdefault(group, {}), event.get(group, {}))
            parts: dict[str, float] = event["parts"]
            self.own_s[event["step"]] = sum(s for p, s in parts.items() if p not in NOT_OWN)
        elif kind == "probe":
            self.probes.append(event)
        else:
            add_up(self.rest, event["parts"])

    def mean(self, group: str) -> dict[str, float]:
        return {name: total / self.steps for name, total in self.sums.get(group, {}).items()}

    def facts(self, rank: int, host: str, slow_share: float) -> RankFacts:
        parts, sent = dict(self.sums["parts"]), self.mean("sent")
        add_up(parts, self.rest)
        return RankFacts(
            rank=rank,
            host=host,
            parts={name: total / self.steps for name, total in parts.items()},
            on_cpu=self.mean("on_cpu"),
            work=self.mean("work"),
            sent_bytes=sent.get("bytes", 0.0),
            sent_s=sent.get("seconds", 0.0),
            slow_share=slow_share,
            trouble=trouble_of(self.probes),
        )


def add_up(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, number in more.items():
        if name not in ONCE:
            sums[name] = sums.get(name, 0.0) + number


@dataclass
class Gathered:
    """What the events of an attempt say about some of its steps, rank by rank."""

    chosen: Callable[[int], bool] = lambda step: True
    """Which steps count."""
    tallies: dict[int, RankSums] = field(default_factory=dict)
    starts: dict[int, Event] = field(default_factory=dict)
    in_larger: float | None = None

    def add(self, rank: int, event: Event) -> None:
        kind = event["kind"]
        if kind == "attempt":
            self.starts[rank] = event
        elif kind == "larger_batch":
            self.in_larger = min(event["larger_s"] / (LARGER * event["seconds"]), 1.0)
        elif kind in ("step", "probe", "skipped", "end") and self.covers(rank, event.get("step")):
            self.tallies.setdefault(rank, RankSums()).add(event)

    def covers(self, rank: int, step: int | None) -> bool:
        """Whether a step of an attempt that has begun is one of ours, and past the warm-up."""
        if rank not in self.starts or step is None:
            return False
        return step >= self.starts[rank]["step"] + WARM_UP and self.chosen(step)

    def facts(self) -> Facts | None:
        """The facts of the same steps of each rank; None where there are none."""
        tallies = {rank: tally for rank, tally in sorted(self.tallies.items()) if tally.steps}
        if not tallies:
            return None
        slow = slow_shares({rank: tally.own_s for rank, tally in tallies.items()})
        ranks = tuple(
            tally.facts(rank, self.starts[rank]["environment"].get("host", ""), slow.get(rank, 0.0))
            for rank, tally in tallies.items()
        )
        first, start = tallies[min(tallies)], self.starts[min(self.starts)]
        environment = start["environment"]
        probes = [probe for tally in tallies.values() for probe in tally.probes]
        hog, cores = hog_of(probes)
        return Facts(
            ranks=ranks,
            steps=min(tally.steps for tally in tallies.values()),
            images=first.images / first.steps,
            threads=start.get("loading_threads", 1),
            cores=environment.get("cores", 0),
            computing=environment.get("threads", 1),
            local_world=start.get("local_world", 1),
            world=max(start.get("world", 1), len(ranks)),
            capacity=start.get("capacity"),
            send_cpu=start.get("send_cpu") or 0.0,
            in_larger=self.in_larger,
            late_share=mean_of(probes, "lock", "late_share"),
            hog=hog,
            hog_cores=cores,
            delay_s=mean_of(probes, "main", "delay") * ranks[0].step_s if probes else None,
        )


def facts_of_run(
    run: Run, attempt: int, chosen: Callable[[int], bool] = lambda step: True
) -> Facts | None:
    """The facts of the chosen steps of an attempt, from the run directory."""
    seen = Gathered(chosen)
    for rank in run.ranks(attempt):
        for event in run.attempt_events(attempt, rank):
            seen.add(rank, event)
    return seen.facts()


def slow_shares(own_s: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """For each rank, in which share of the steps it was slower than the others' median."""
    if len(own_s) < 2:
        return {}
    common = set.intersection(*(set(steps) for steps in own_s.values()))
    shares = {}
    for rank, mine in own_s.items():
        others = [steps for other, steps in own_s.items() if other != rank]
        slow = [mine[s] > SLOWER * statistics.median(o[s] for o in others) for s in common]
        shares[rank] = statistics.fmean(slow) if slow else 0.0
    return shares


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


def hog_of(readings: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    """The Python thread, of those that are not ours, that uses most of a core; and how much."""
    for reading in reversed(readings):
        for thread in reading.get("threads", ()):
            ours = thread["name"] == "MainThread" or thread["name"].startswith("stoker-")
            if thread["python"] and not ours and thread["cores"] > HOG_CORES:
                return thread["name"], thread["cores"]
    return "", 0.0
