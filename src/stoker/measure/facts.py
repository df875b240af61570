"""What was measured in some steps of a run, all ranks together: all that a verdict needs.

Invariant: means over the steps, never typical ones: a loader that falls behind waits long now and
then, and not at all in between.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

LARGER = 8
"""A batch so many times as large is tried where steps are quick."""
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
    computing: int = 1
    """Threads that compute for a rank, where a CPU does."""
    local_world: int = 1
    world: int = 1
    """Ranks that train together, whether all of them are known here or not."""
    capacity: float | None = None
    """Bytes a second that a rank can send and receive, measured before the first step."""
    send_cpu: float = 0.0
    """CPU seconds that a byte on the wire takes, measured with it."""
    in_larger: float | None = None
    """How long an image takes, forward and backward, as part of a batch `LARGER` times as large:
    the share of what it takes in this one. Tried where steps are quick."""
    late_share: float = 0.0
    """How often the interpreter lock was not free for whoever asked."""
    hog: str = ""
    """The Python thread that uses most of a core though it is not ours."""
    hog_cores: float = 0.0
    """How much of a core it uses."""
    delay_s: float | None = None
    """How long the training thread waited for a core, a step; None where nobody looked."""

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

    def cpu_floor_s(self, without: str = "") -> float:
        """No step of a machine can be quicker than the CPU time of its work over its cores: the
        training thread, those that compute with it, and loading, but for one kind of its work.
        (What threads spend on waiting in circles for each other is no work.)"""
        if not self.cores:
            return 0.0
        work = statistics.fmean(
            sum(rank.on_cpu.values()) * self.computing
            + rank.work.get("cpu", 0.0)
            - rank.work.get(without, 0.0)
            for rank in self.ranks
        )
        return work * self.local_world / self.cores
