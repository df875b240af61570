"""From the events of an attempt to the facts of its steps.

Invariants: sums are kept, not events, because a run may have a million steps. The first steps of an
attempt are left out: they fill queues and choose kernels. Time that is spent once belongs to no
step. Events of older runs, which have fewer fields, are read too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.measure.facts import LARGER, SLOWER, Facts, RankFacts
from stoker.measure.spans import ONCE
from stoker.run.directory import Run
from stoker.run.kinds import Event
from stoker.run.rows import GROUPS, NOT_OWN, SINGLE_STEPS, leaves

WARM_UP = SINGLE_STEPS
"""The first steps of an attempt, which are left out: they have rows of their own."""
WORTH_NAMING = 0.05
"""The share of the time above which a slowdown of a machine is worth naming."""
HOG_CORES = 0.3
"""The share of a core above which a thread that is not ours is worth naming."""
COUNTED = ("step", "steps", "probe", "probes", "skipped", "end")


class ProbeSums:
    """Sums over the probes of one rank or several."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._gpu_throttles: set[str] = set()
        self.hog, self.hog_cores = "", 0.0
        """The Python thread, not ours, that last used much of a core, and its share."""

    def add(self, event: Event) -> None:
        """Add a probe, or a row of probes."""
        count = event.get("count", 1)
        for name, mean in event["means"].items() if event["kind"] == "probes" else leaves(event):
            self._totals[name] = self._totals.get(name, 0.0) + mean * count
            self._counts[name] = self._counts.get(name, 0) + count
            reason = name.partition(".throttles.")[2]
            if reason and name.startswith("gpus.") and mean > WORTH_NAMING:
                self._gpu_throttles.add(reason)
        for thread in reversed(event.get("threads", ())):
            is_ours = thread["name"] == "MainThread" or thread["name"].startswith("stoker-")
            if thread["python"] and not is_ours and thread["cores"] > HOG_CORES:
                self.hog, self.hog_cores = thread["name"], thread["cores"]

    def join(self, other: ProbeSums) -> None:
        """Add those of another rank."""
        for name, total in other._totals.items():
            self._totals[name] = self._totals.get(name, 0.0) + total
            self._counts[name] = self._counts.get(name, 0) + other._counts[name]
        if other.hog:
            self.hog, self.hog_cores = other.hog, other.hog_cores

    def __bool__(self) -> bool:
        return bool(self._totals)

    def total(self, name: str) -> float:
        return self._totals.get(name, 0.0)

    def mean(self, name: str) -> float:
        """The mean over the probes that have a number; 0 where none has."""
        return self.total(name) / max(self._counts.get(name, 0), 1)

    @property
    def throttled_share(self) -> float:
        """The share of the time for which a CPU quota stopped threads, added up over the cores."""
        seconds = self.total("seconds")
        return self.total("cpu.throttled_s") / seconds if seconds else 0.0

    def slowdowns(self) -> dict[str, float | str]:
        """What slowed a machine down, as in `RankFacts.slowdowns`."""
        shares = {
            "throttled_share": self.throttled_share,
            "stolen_share": self.mean("cpu.steal"),
        }
        named: dict[str, float | str] = {n: s for n, s in shares.items() if s > WORTH_NAMING}
        throttles = ", ".join(sorted(self._gpu_throttles))
        return named | ({"gpu_throttles": throttles} if throttles else {})


@dataclass
class RankSums:
    """Sums over the steps of one rank."""

    steps: int = 0
    images: float = 0.0
    sums: dict[str, dict[str, float]] = field(default_factory=dict)
    own_s: dict[int, float] = field(default_factory=dict)
    """Seconds of each step until its gradients were computed."""
    probes: ProbeSums = field(default_factory=ProbeSums)

    def add(self, event: Event) -> None:
        kind = event["kind"]
        if kind in ("step", "steps"):
            self.steps += event.get("count", 1)
            self.images += event["batch"]
            for group in GROUPS:
                add_up(self.sums.setdefault(group, {}), event.get(group, {}))
            parts: dict[str, float] = event["parts"]
            own_s = [sum(s for p, s in parts.items() if p not in NOT_OWN)]
            self.own_s.update(enumerate(event.get("own_s", own_s), event["step"]))
        elif kind in ("probe", "probes"):
            self.probes.add(event)
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
            slowdowns=self.probes.slowdowns(),
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
        elif kind in COUNTED and self.covers(rank, event.get("step")):
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
        probes = ProbeSums()
        for one in sums.values():
            probes.join(one.probes)
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
            store=start.get("store", ""),
            image_bytes=start.get("image_bytes", 0.0),
            late_share=probes.mean("lock.late_share"),
            hog=probes.hog,
            hog_cores=probes.hog_cores,
            **core_facts(list(sums.values()), ranks, probes, local_world),
        )


def facts_of_run(
    run: Run, attempt: int, includes: Callable[[int], bool] | None = None
) -> Facts | None:
    """The facts of an attempt, from the run directory; None where there are none. With `includes`,
    those of some of its steps, for which all of its events are read."""
    sums = AttemptSums(includes) if includes else AttemptSums()
    read = run.attempt_events if includes else run.attempt_rows
    for rank in run.ranks(attempt):
        for event in read(attempt, rank):
            sums.add(rank, event)
    return sums.facts()


def slow_shares(own_s: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """For each rank, the share of steps in which it was slower than the median of the others."""
    if len(own_s) < 2:
        return {}
    numbers = [np.fromiter(steps, np.int64, len(steps)) for steps in own_s.values()]
    common = reduce(np.intersect1d, numbers)
    if not len(common):
        return dict.fromkeys(own_s, 0.0)
    columns = zip(numbers, own_s.values(), strict=True)
    seconds = np.array([seconds_of(common, own, steps) for own, steps in columns])
    return {
        rank: float((seconds[n] > SLOWER * np.median(np.delete(seconds, n, 0), 0)).mean())
        for n, rank in enumerate(own_s)
    }


def seconds_of(
    common: NDArray[np.int64], numbers: NDArray[np.int64], steps: Mapping[int, float]
) -> NDArray[np.float64]:
    """The seconds of some steps of a rank."""
    order = np.argsort(numbers)
    seconds = np.fromiter(steps.values(), np.float64, len(steps))[order]
    return seconds[np.searchsorted(numbers[order], common)]


def core_facts(
    sums: Sequence[RankSums],
    ranks: Sequence[RankFacts],
    probes: ProbeSums,
    local_world: int,
) -> dict[str, Any]:
    """The facts about cores: from the steps, or from the probes of runs whose steps lack them."""
    steps = [one.mean("cores") for one in sums]
    step_s = statistics.fmean(rank.step_s for rank in ranks)
    waits = [one["wait"] for one in steps if "wait" in one]
    used = [one["cpu"] for one in steps if "cpu" in one]
    if probes and not waits:
        waits = [probes.mean("main.delay") * step_s]
    if probes and not used:
        used = [probes.mean("cpu.own_cores") * step_s]
    busy, stolen = probes.mean("cpu.busy"), probes.mean("cpu.steal")
    return {
        "delay_s": statistics.fmean(waits) if waits else None,
        "own_cores": statistics.fmean(used) / step_s * local_world if used and step_s else None,
        "throttled_share": probes.throttled_share,
        "stolen_share": stolen / (busy + stolen) if stolen else 0.0,
    }
