"""Where the time of a step goes.

Invariants: the parts of a lap add up to its time; time outside of all spans is `other`. The time of
a span inside another is taken from the outer one, so that no second is counted twice. Nothing here
makes the host wait for a device: the marks of a lap are read when its parts are requested.

    spans = Spans()
    for batch in loader:
        with spans("forward"):
            loss = model(batch)
        print(spans.lap().parts())      # {"forward": 0.031, "other": 0.002}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from stoker.faults import reach
from stoker.host.threads import CoreUse
from stoker.measure.clocks import Clock, HostClock

WAITING = ("data", "read", "decode")
"""Waiting for images: `read` and `decode` where the loader separates them, else `data`."""
ONCE = ("compile", "measuring")
"""Spent once, before or between steps: part of no step."""
APART = ("checkpoint", "evaluation", *ONCE)
"""Spent now and then, between two steps."""
STEP = ("to_device", "forward", "backward", "exchange", "optimiser")
"""`exchange` is what the gradient exchange adds to the backward pass."""
PARTS = (*WAITING, *STEP, *APART, "other")
"""All parts, in the order in which they are shown."""


def shares_of(work: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """How waiting for data is divided: by the seconds that loading threads read and decoded."""
    return {"data": {name: work.get(name, 0.0) for name in ("read", "decode")}}


@dataclass(frozen=True)
class Lap:
    """A stretch of time, divided into parts. On a GPU, reading the parts waits for the device."""

    clock: Clock
    marks: list[tuple[str, Any]]
    """The name of the span that was open until each mark."""
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Parts that are divided into others, by weight."""
    cores: Mapping[str, float] = field(default_factory=dict)
    """`cpu`: CPU seconds of all threads of this process. `wait`: seconds for which the measured
    thread was ready to run and had no core; absent where the kernel does not count them."""

    def passed(self) -> bool:
        """Whether the device has come to the end, so that reading the parts does not wait."""
        return self.clock.passed(self.marks[-1][1])

    def parts(self) -> dict[str, float]:
        """Seconds of each part, to the microsecond."""
        parts = self._totals(self.clock.between)
        for name, weights in self.shares.items():
            whole = sum(weights.values())
            if name in parts and whole > 0:
                seconds = parts.pop(name)
                for part, weight in weights.items():
                    parts[part] = parts.get(part, 0.0) + seconds * weight / whole
        return {name: round(seconds, 6) for name, seconds in parts.items()}

    def on_cpu(self) -> dict[str, float]:
        """Seconds of each part for which the thread was running; empty where unknown."""
        return {n: round(seconds, 6) for n, seconds in self._totals(self.clock.on_cpu).items()}

    def times(self) -> dict[str, Mapping[str, float]]:
        """All that was measured, as in the event of a step."""
        return {"parts": self.parts(), "on_cpu": self.on_cpu(), "cores": self.cores}

    def _totals(self, between: Callable[[Any, Any], float | None]) -> dict[str, float]:
        """Seconds of each span by one of the clocks; empty where it does not know them."""
        totals: dict[str, float] = {}
        for (_, begin), (name, end) in pairwise(self.marks):
            seconds = between(begin, end)
            if seconds is None:
                return {}
            totals[name] = totals.get(name, 0.0) + seconds
        return totals


class Spans:
    """Divides time into named parts, lap by lap."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or HostClock()
        self._open: list[str] = []
        self._marks: list[tuple[str, Any]] = [("", self._clock.mark())]
        self._launched: Any = None
        self._core_use: CoreUse | None = None

    def __call__(self, name: str) -> _Span:
        """A context; the time inside of it is counted for a part."""
        return _Span(self, name)

    def _charge(self) -> None:
        """Count the time since the last mark for the innermost open span."""
        self._marks.append((self.now, self._clock.mark()))

    @property
    def now(self) -> str:
        """The innermost open span; may be read by another thread."""
        return next(iter(self._open[-1:]), "other")

    def _enter(self, name: str) -> None:
        self._charge()
        self._open.append(name)
        reach(name)

    def _leave(self) -> None:
        launched, self._launched = self._launched, None
        if launched is not None and self.now == "backward":
            self._marks += [("backward", launched), ("exchange", self._clock.mark())]
        else:
            self._charge()
        self._open.pop()

    def launched(self) -> None:
        """A bucket's exchange begins. After the last one, the backward pass only waits for it."""
        self._launched = self._clock.mark()

    def lap(self, shares: Mapping[str, Mapping[str, float]] | None = None) -> Lap:
        """The time since the last lap; begins the next one."""
        self._charge()
        marks, self._marks = self._marks, [("", self._marks[-1][1])]
        if self._core_use is None:  # here, because it counts for the thread that makes it
            self._core_use = CoreUse()
        return Lap(self._clock, marks, shares or {}, self._core_use.since_last())


class _Span:
    """A class rather than a generator: several of them are entered in every step."""

    __slots__ = ("_name", "_spans")

    def __init__(self, spans: Spans, name: str) -> None:
        self._spans, self._name = spans, name

    def __enter__(self) -> None:
        self._spans._enter(self._name)

    def __exit__(self, *error: object) -> None:
        self._spans._leave()
