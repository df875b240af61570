"""The clock of the host, and the clock of a GPU, which runs work later than the host submits it.

Invariants: taking a mark never makes the host wait for the device. Marks of a GPU are events in its
stream. The time between two of them is the device's own: a host that runs ahead does not count, and
a device that waits for the host is seen to wait. Marks are read later, when they have passed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from stoker.host.gpu import wait_for

if TYPE_CHECKING:  # reading a run needs no torch
    import torch

Moment = tuple[float, float]
"""Seconds of the wall clock, and of the CPU clock of the thread that took the mark."""


class Clock(Protocol):
    """Takes marks, and returns the seconds between two of them."""

    def mark(self) -> Any: ...
    def between(self, begin: Any, end: Any) -> float: ...
    def on_cpu(self, begin: Any, end: Any) -> float | None: ...
    def passed(self, mark: Any) -> bool: ...


class HostClock:
    """The clock of this thread."""

    def mark(self) -> Moment:
        return time.perf_counter(), time.thread_time()

    def between(self, begin: Moment, end: Moment) -> float:
        return end[0] - begin[0]

    def on_cpu(self, begin: Moment, end: Moment) -> float | None:
        return end[1] - begin[1]

    def passed(self, mark: Moment) -> bool:
        return True


class CudaClock:
    """The clock of a GPU, in its current stream."""

    def __init__(self, device: torch.device) -> None:
        from torch.cuda import Event, current_stream

        self._event, self._stream, self._device = Event, current_stream, device

    def mark(self) -> torch.cuda.Event:
        event = self._event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream(self._device))
        return event

    def between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        wait_for(end)
        return float(begin.elapsed_time(end)) / 1000

    def on_cpu(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        """None: a device does not know it."""
        return None

    def passed(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())  # type: ignore[no-untyped-call]


def clock_of(device: torch.device) -> Clock:
    """The clock that measures the work of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
