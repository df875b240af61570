"""What time is it: on the host, or on a GPU that works through what it was told a little later.

Invariants: taking a mark never makes the host wait for the device. Marks of a GPU are events in its
stream: the time between two is the device's own, so that a host which runs ahead counts for nothing
and a device which waits for the host is seen to wait. They are read later, when they have passed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # reading a run needs no torch
    import torch

Moment = tuple[float, float]
"""Seconds by the wall clock, and by the CPU clock of the thread that took the mark."""


class Clock(Protocol):
    """Takes marks, and says how many seconds lie between two."""

    def mark(self) -> Any: ...
    def between(self, begin: Any, end: Any) -> float: ...
    def on_cpu(self, begin: Any, end: Any) -> float | None: ...


class HostClock:
    """The time of this thread."""

    def mark(self) -> Moment:
        return time.perf_counter(), time.thread_time()

    def between(self, begin: Moment, end: Moment) -> float:
        return end[0] - begin[0]

    def on_cpu(self, begin: Moment, end: Moment) -> float | None:
        """For how much of it the thread was running, not waiting."""
        return end[1] - begin[1]


class CudaClock:
    """The time of a GPU, in the stream that is current there."""

    def __init__(self, device: torch.device) -> None:
        from torch.cuda import Event, current_stream

        self._event, self._stream, self._device = Event, current_stream, device

    def mark(self) -> torch.cuda.Event:
        event = self._event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream(self._device))
        return event

    def between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def on_cpu(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        """Nothing that a device could tell."""
        return None


def clock_of(device: torch.device) -> Clock:
    """The clock that tells where the time of a device goes."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
