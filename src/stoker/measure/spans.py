"""Where the time of a step goes.

Invariant: the parts of a lap add up to its wall time; what no span claims is `other`. A span that
opens inside another takes its time from the outer one, so that no second is counted twice.

    spans = Spans()
    for batch in loader:
        with spans("forward"):
            loss = model(batch)
        print(spans.lap())      # {"forward": 0.031, "other": 0.002}
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from stoker.faults import reach

PARTS = (
    "data",
    "to_device",
    "forward",
    "backward",
    "optimiser",
    "checkpoint",
    "evaluation",
    "compile",
    "other",
)
"""The parts of a training step, in the order in which they are shown."""


class Spans:
    """Cuts wall time into named parts, lap by lap."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._parts: dict[str, float] = {}
        self._open: list[str] = []
        self._mark = clock()

    def __call__(self, name: str) -> _Span:
        return _Span(self, name)

    def _charge(self) -> None:
        """Give the time since the last mark to whatever is open."""
        now = self._clock()
        name = self._open[-1] if self._open else "other"
        self._parts[name] = self._parts.get(name, 0.0) + now - self._mark
        self._mark = now

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
        self._charge()
        self._open.pop()

    def lap(self) -> dict[str, float]:
        """The parts since the last lap, in seconds to the microsecond; begins the next one."""
        self._charge()
        parts, self._parts = self._parts, {}
        return {name: round(seconds, 6) for name, seconds in parts.items()}


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
