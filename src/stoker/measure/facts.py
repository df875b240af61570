"""What was measured in some steps of a run, over all ranks: everything that a verdict needs.

Invariant: values are means over the steps, never a typical step: a loader that falls behind waits
long now and then, and not at all in between.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

LARGER = 8
"""Where steps are short, a batch this many times as large is tried."""
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
    """Seconds of each part for which the training thread was running; empty where unknown."""
    work: Mapping[str, float] = field(default_factory=dict)
    """Seconds of loading threads: `read`, `decode`, and `cpu` of both."""
    sent_bytes: float = 0.0
    """Bytes of gradients that it exchanged."""
    sent_s: float = 0.0
    """Seconds for which some of these bytes were on their way."""
    slow_share: float = 0.0
    """The share of steps in which it was slower than the others."""
    slowdowns: Mapping[str, float | str] = field(default_factory=dict)
    """What slowed its machine down, where it is worth naming: `throttled_share` of the time by a
    CPU quota, `stolen_share` of the CPU by a hypervisor, `gpu_throttles` as NVML names them."""

    @property
    def step_s(self) -> float:
        return sum(self.parts.values())

    @property
    def own_s(self) -> float:
        """Seconds until its gradients are computed, without saving checkpoints."""
        return self.step_s - self.parts.get("exchange", 0.0) - self.parts.get("checkpoint", 0.0)


@dataclass(frozen=True)
class Facts:
    """Some steps of all ranks."""

    ranks: tuple[RankFacts, ...]
    steps: int
    images: float = 0.0
    """Images of a step, over all ranks."""
    threads: int = 1
    """Loading threads of a rank."""
    cores: int = 0
    """Cores that the ranks of a machine share; 0 where unknown."""
    computing: int = 1
    """Threads that compute for a rank, where a CPU does."""
    local_world: int = 1
    world: int = 1
    """Ranks that train together, also those without facts here."""
    capacity: float | None = None
    """Bytes a second that a rank can send and receive, measured before the first step."""
    send_cpu: float = 0.0
    """CPU seconds for each byte on the wire, measured with the capacity."""
    in_larger: float | None = None
    """Seconds of an image, forward and backward, as part of a batch `LARGER` times as large,
    divided by its seconds in this batch. Measured where steps are short."""
    late_share: float = 0.0
    """The share of the sampling thread's wake-ups at which the interpreter lock was not free."""
    hog: str = ""
    """The Python thread, other than our own, that uses most of a core."""
    hog_cores: float = 0.0
    delay_s: float | None = None
    """Seconds of a step for which the training thread waited for a core; None if not measured."""
    own_cores: float | None = None
    """Cores that the ranks of a machine used together; None if not measured."""
    throttled_share: float = 0.0
    """The share of the time for which a CPU quota stopped the run, added up over the cores."""
    store: str = ""
    """Where the images come from, where that is not this machine."""
    image_bytes: float = 0.0
    """Mean bytes of a stored image, where they come from a store."""
    stolen_share: float = 0.0
    """The share of the CPU time that the machine asked for and its hypervisor gave to others."""

    @property
    def step_s(self) -> float:
        return statistics.fmean(rank.step_s for rank in self.ranks)

    def part(self, *names: str) -> float:
        """Seconds of a step in some parts, the mean over the ranks."""
        return statistics.fmean(
            sum(rank.parts.get(name, 0.0) for name in names) for rank in self.ranks
        )

    def work(self, *names: str) -> float:
        """Seconds of a step that one loading thread works, if the work is shared evenly."""
        return statistics.fmean(
            sum(rank.work.get(name, 0.0) for name in names) / self.threads for rank in self.ranks
        )

    @property
    def on_cpu_s(self) -> float:
        """Seconds of a step for which the training thread was running; 0 where unknown."""
        return statistics.fmean(sum(rank.on_cpu.values()) for rank in self.ranks)

    @property
    def transfer_s(self) -> float:
        """Seconds of the exchange alone: the last to arrive (the least) waits for nothing else."""
        return min(rank.parts.get("exchange", 0.0) for rank in self.ranks)

    def cpu_floor_s(self, without: str = "") -> float:
        """The shortest step that the cores allow: CPU seconds of the threads that compute and load
        (except `without`), not of spinning, over the cores; 0 where the cores are unknown."""
        if not self.cores:
            return 0.0
        work = statistics.fmean(
            sum(rank.on_cpu.values()) * self.computing
            + rank.work.get("cpu", 0.0)
            - rank.work.get(without, 0.0)
            for rank in self.ranks
        )
        return work * self.local_world / self.cores
