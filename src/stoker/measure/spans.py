"""Where the time of a step goes.

Invariants: the parts of a lap add up to its time; what no span claims is `other`. A span that opens
inside another takes its time from the outer one, so that no second is counted twice. Nothing here
makes the host wait for a device: a lap is read when somebody asks for its parts.

    spans = Spans()
    for batch in loader:
        with spans("forward"):
            loss = model(batch)
        print(spans.lap().parts())      # {"forward": 0.031, "other": 0.002}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any

from stoker.faults import reach
from stoker.measure.clocks import Clock, HostClock

PARTS = (
    "data",
    "read",
    "decode",
    "to_device",
    "forward",
    "backward",
    "exchange",
    "optimiser",
    "checkpoint",
    "evaluation",
    "compile",
    "measuring",
    "other",
)
"""The parts of a training step, in the order in which they are shown. `exchange` is what the
exchange of gradients adds to the backward pass."""
WAITING = ("data", "read", "decode")
"""Waiting for images: `read` and `decode` where the loader tells them apart, `data` where not."""
ONCE = ("compile", "measuring")
"""What comes once: no part of any later step."""
APART = ("checkpoint", "evaluation", *ONCE)
"""What comes now and then, between two steps."""


def shares_of(work: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Waiting for data, told apart by what loading threads spent their time on."""
    return {"data": {name: work.get(name, 0.0) for name in ("read", "decode")}}


@dataclass(frozen=True)
class Lap:
    """A stretch of time, cut into parts. On a GPU it has parts only once the device is there."""

    clock: Clock
    marks: list[tuple[str, Any]]
    """What was open until each mark."""
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """How a part is made up of others, by weight."""

    def parts(self) -> dict[str, float]:
        """Seconds of each part, to the microsecond."""
        found: dict[str, float] = {}
        for (_, begin), (name, end) in pairwise(self.marks):
            found[name] = found.get(name, 0.0) + self.clock.between(begin, end)
        for name, weights in self.shares.items():
            whole = sum(weights.values())
            if name in found and whole > 0:
                seconds = found.pop(name)
                for part, weight in weights.items():
                    found[part] = found.get(part, 0.0) + seconds * weight / whole
        return {name: round(seconds, 6) for name, seconds in found.items()}

    def on_cpu(self) -> dict[str, float]:
        """For how many seconds of each part the thread was running; empty where none can tell."""
        found: dict[str, float] = {}
        for (_, begin), (name, end) in pairwise(self.marks):
            seconds = self.clock.on_cpu(begin, end)
            if seconds is None:
                return {}
            found[name] = found.get(name, 0.0) + seconds
        return {name: round(seconds, 6) for name, seconds in found.items()}


class Spans:
    """Cuts time into named parts, lap by lap."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or HostClock()
        self._open: list[str] = []
        self._marks: list[tuple[str, Any]] = [("", self._clock.mark())]
        self._launched: Any = None

    def __call__(self, name: str) -> _Span:
        return _Span(self, name)

    def _charge(self) -> None:
        """Give the time since the last mark to whatever is open."""
        self._marks.append((self.now, self._clock.mark()))

    @property
    def now(self) -> str:
        """What is open at this moment, as another thread may ask."""
        open_now = self._open[-1:]
        return open_now[0] if open_now else "other"

    def _enter(self, name: str) -> None:
        self._charge()
        self._open.append(name)
        reach(name)

    def _leave(self) -> None:
        launched, self._launched = self._launched, None
        if launched is not None and self.now == "backward":
            self._marks.append(("backward", launched))
            self._marks.append(("exchange", self._clock.mark()))
        else:
            self._charge()
        self._open.pop()

    def launched(self) -> None:
        """Ranks begin to exchange some gradients, while the backward pass goes on: from the last
        time this happens until the pass ends, there is nothing left but to wait for it."""
        self._launched = self._clock.mark()

    def lap(self, shares: Mapping[str, Mapping[str, float]] | None = None) -> Lap:
        """The time since the last lap; begins the next one."""
        self._charge()
        marks, self._marks = self._marks, [("", self._marks[-1][1])]
        return Lap(self._clock, marks, shares or {})


class _Span:
    __slots__ = ("_name", "_spans")

    def __init__(self, spans: Spans, name: str) -> None:
        self._spans, self._name = spans, name

    def __enter__(self) -> None:
        self._spans._enter(self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spans._leave()
