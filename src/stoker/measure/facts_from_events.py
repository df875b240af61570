"""From the events of an attempt to the facts of its steps.

Invariants: sums are kept, not events, because a run may have a million steps. The first steps of an
attempt are left out: they fill queues and choose kernels. Time that is spent once belongs to no
step. Events of older runs, which have fewer fields, are read too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.measure.facts import LARGER, SLOWER, Facts, RankFacts
from stoker.measure.spans import ONCE
from stoker.run.directory import Run
from stoker.run.kinds import Event

WARM_UP = 3
"""The first steps of an attempt, which are left out."""
WORTH_NAMING = 0.05
"""The share of the time above which a slowdown of a machine is worth naming."""
HOG_CORES = 0.3
"""The share of a core above which a thread that is not ours is worth naming."""
GROUPS = ("parts", "on_cpu", "work", "sent", "cores")
"""Groups of numbers in a `step` event; each number is summed."""
NOT_OWN = ("exchange", "checkpoint", *ONCE)


@dataclass
class RankSums:
    """Sums over the steps of one rank."""

    steps: int = 0
    images: float = 0.0
    sums: dict[str, dict[str, float]] = field(default_factory=dict)
    own_s: dict[int, float] = field(default_factory=dict)
    """Seconds of each step until its gradients were computed."""
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
        else:  # time between steps, such as the last evaluation and save: the steps share it
            add_up(self.sums.setdefault("parts", {}), event["parts"])

    def mean(self, group: str) -> dict[str, float]:
        return {name: total / self.steps for name, total in self.sums.get(group, {}).items()}

    def facts(self, rank: int, host: str, slow_share: float) -> RankFacts:
        sent = self.mean("sent")
        return RankFacts(
            rank=rank,
            host=host,
            parts=self.mean("parts"),
            on_cpu=self.mean("on_cpu"),
            work=self.mean("work"),
            sent_bytes=sent.get("bytes", 0.0),
            sent_s=sent.get("seconds", 0.0),
            slow_share=slow_share,
            slowdowns=slowdowns(self.probes),
        )


def add_up(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, number in more.items():
        if name not in ONCE:
            sums[name] = sums.get(name, 0.0) + number


@dataclass
class AttemptSums:
    """Sums over some steps of an attempt, for each rank, from its events."""

    includes: Callable[[int], bool] = lambda step: True
    ranks: dict[int, RankSums] = field(default_factory=dict)
    starts: dict[int, Event] = field(default_factory=dict)
    in_larger: float | None = None

    def add(self, rank: int, event: Event) -> None:
        kind = event["kind"]
        if kind == "attempt":
            self.starts[rank] = event
        elif kind == "larger_batch":
            self.in_larger = min(event["larger_s"] / (LARGER * event["seconds"]), 1.0)
        elif kind in ("step", "probe", "skipped", "end") and self.covers(rank, event.get("step")):
            self.ranks.setdefault(rank, RankSums()).add(event)

    def covers(self, rank: int, step: int | None) -> bool:
        """Whether a step counts, comes after the start of the attempt and after the warm-up."""
        if rank not in self.starts or step is None:
            return False
        return step >= self.starts[rank]["step"] + WARM_UP and self.includes(step)

    def facts(self) -> Facts | None:
        """The facts of the steps of each rank; None where there are none."""
        sums = {rank: self.ranks[rank] for rank in sorted(self.ranks) if self.ranks[rank].steps}
        if not sums:
            return None
        hosts = {rank: self.starts[rank]["environment"].get("host", "") for rank in sums}
        slow = slow_shares({rank: one.own_s for rank, one in sums.items()})
        ranks = tuple(one.facts(r, hosts[r], slow.get(r, 0.0)) for r, one in sums.items())
        first, start = sums[min(sums)], self.starts[min(self.starts)]
        environment = start["environment"]
        probes = [probe for one in sums.values() for probe in one.probes]
        hog, hog_cores = busiest_thread(probes)
        local_world = start.get("local_world", 1)
        return Facts(
            ranks=ranks,
            steps=min(one.steps for one in sums.values()),
            images=first.images / first.steps,
            threads=start.get("loading_threads", 1),
            cores=environment.get("cores", 0),
            computing=environment.get("threads", 1),
            local_world=local_world,
            world=max(start.get("world", 1), len(ranks)),
            capacity=start.get("capacity"),
            send_cpu=start.get("send_cpu") or 0.0,
            in_larger=self.in_larger,
            late_share=mean_of(probes, "lock", "late_share"),
            hog=hog,
            hog_cores=hog_cores,
            **core_facts(list(sums.values()), ranks, probes, local_world),
        )


def facts_of_run(
    run: Run, attempt: int, includes: Callable[[int], bool] = lambda step: True
) -> Facts | None:
    """The facts of some steps of an attempt, from the run directory; None where there are none."""
    sums = AttemptSums(includes)
    for rank in run.ranks(attempt):
        for event in run.attempt_events(attempt, rank):
            sums.add(rank, event)
    return sums.facts()


def slow_shares(own_s: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """For each rank, the share of steps in which it was slower than the median of the others."""
    if len(own_s) < 2:
        return {}
    common = set.intersection(*(set(steps) for steps in own_s.values()))
    shares = {}
    for rank, seconds in own_s.items():
        others = [steps for other, steps in own_s.items() if other != rank]
        slow = [seconds[s] > SLOWER * statistics.median(o[s] for o in others) for s in common]
        shares[rank] = statistics.fmean(slow) if slow else 0.0
    return shares


def mean_of(probes: Sequence[Mapping[str, Any]], group: str, name: str) -> float:
    """The mean of a number over the probes that have it; 0 where none has."""
    values = [p[group][name] for p in probes if p.get(group, {}).get(name) is not None]
    return statistics.fmean(values) if values else 0.0


def core_facts(
    sums: Sequence[RankSums],
    ranks: Sequence[RankFacts],
    probes: Sequence[Mapping[str, Any]],
    local_world: int,
) -> dict[str, Any]:
    """The facts about cores: from the steps, or from the probes of runs whose steps lack them."""
    steps = [one.mean("cores") for one in sums]
    step_s = statistics.fmean(rank.step_s for rank in ranks)
    waits = [one["wait"] for one in steps if "wait" in one]
    used = [one["cpu"] for one in steps if "cpu" in one]
    if probes and not waits:
        waits = [mean_of(probes, "main", "delay") * step_s]
    if probes and not used:
        used = [mean_of(probes, "cpu", "own_cores") * step_s]
    busy, stolen = mean_of(probes, "cpu", "busy"), mean_of(probes, "cpu", "steal")
    return {
        "delay_s": statistics.fmean(waits) if waits else None,
        "own_cores": statistics.fmean(used) / step_s * local_world if used and step_s else None,
        "throttled_share": throttled_share(probes),
        "stolen_share": stolen / (busy + stolen) if stolen else 0.0,
    }


def throttled_share(probes: Sequence[Mapping[str, Any]]) -> float:
    """The share of the time for which a CPU quota stopped threads, added up over the cores."""
    total_s = sum(probe.get("seconds", 0.0) for probe in probes)
    throttled_s = sum(probe.get("cpu", {}).get("throttled_s", 0.0) for probe in probes)
    return throttled_s / total_s if total_s else 0.0


def slowdowns(probes: Sequence[Mapping[str, Any]]) -> dict[str, float | str]:
    """What slowed a machine down, as in `RankFacts.slowdowns`."""
    shares = {
        "throttled_share": throttled_share(probes),
        "stolen_share": mean_of(probes, "cpu", "steal"),
    }
    gpu_throttles = {
        reason
        for probe in probes
        for gpu in probe.get("gpus", ())
        for reason, share in gpu.get("throttles", {}).items()
        if share > WORTH_NAMING
    }
    named: dict[str, float | str] = {n: s for n, s in shares.items() if s > WORTH_NAMING}
    return named | ({"gpu_throttles": ", ".join(sorted(gpu_throttles))} if gpu_throttles else {})


def busiest_thread(probes: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    """The Python thread, not ours, that uses most of a core, and its share; empty if none does."""
    for probe in reversed(probes):
        for thread in probe.get("threads", ()):
            ours = thread["name"] == "MainThread" or thread["name"].startswith("stoker-")
            if thread["python"] and not ours and thread["cores"] > HOG_CORES:
                return thread["name"], thread["cores"]
    return "", 0.0
