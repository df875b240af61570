"""The curve of a run over all attempts, read forward from any position.

Invariants: each metric has one value for a step, and its steps increase: an attempt that resumed at
step s replaces what earlier ones wrote after step s. An evaluation at step s is kept from the
earlier attempt: it is of the same checkpoint. Nothing is kept in memory but the next point.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.history.metrics import TRAIN, AttemptMetrics, MetricPoint
from stoker.run.directory import Run
from stoker.run.rows import NEVER
from stoker.survive.manifest import pointer, step_and_save

Clock = Callable[[], float]
READ_S = 0.5
"""Seconds of one read: a reader that skips what was copied can be interrupted."""


@dataclass(frozen=True)
class CurvePosition:
    """Up to where a curve was copied."""

    attempt: int = 0
    """The newest attempt that was merged in; 0 where nothing was copied."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """The last step of each stream."""

    def after(self, point: MetricPoint, attempt: int) -> CurvePosition:
        return CurvePosition(attempt, {**self.steps, point.stream: point.step})

    def before(self, step: int, attempt: int) -> CurvePosition:
        """The position without the values at this step and later ones."""
        return CurvePosition(attempt, {s: min(last, step - 1) for s, last in self.steps.items()})

    def data(self) -> dict[str, Any]:
        return {"attempt": self.attempt, "steps": dict(self.steps)}

    @classmethod
    def of(cls, data: Any) -> CurvePosition:
        """The position in plain data. Raises ValueError, KeyError or TypeError where it is none."""
        steps = {str(stream): int(step) for stream, step in dict(data["steps"]).items()}
        return cls(int(data["attempt"]), steps)


@dataclass(frozen=True)
class AttemptStart:
    """Where an attempt began to train."""

    position: int
    step: int


class AttemptStarts:
    """Where the attempts of a run began, kept up to date."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[int, AttemptStart] = {}
        self._numbers: list[int] = []

    def look(self) -> dict[int, AttemptStart]:
        """Each attempt that has begun to train. A new object where there is a new one."""
        try:
            self._numbers = self._run.attempts()
        except OSError:
            return self._known
        starts = {n: s for n in self._numbers if (s := self._known.get(n) or self._start_of(n))}
        if starts.keys() != self._known.keys():
            self._known = starts
        return self._known

    @property
    def newest(self) -> int:
        """The newest attempt, also where it has not begun to train."""
        return max(self._numbers, default=0)

    def _start_of(self, attempt: int) -> AttemptStart | None:
        for event in self._run.attempt_events(attempt):
            if "position" in event and "step" in event:
                return AttemptStart(event["position"], event["step"])
        return None


class CurveReader:
    """Reads the points after a position. It holds for the attempts that are known when it is made:
    after a new one has begun, another reader is needed."""

    def __init__(
        self,
        run: Run,
        starts: Mapping[int, AttemptStart],
        position: CurvePosition,
        *,
        every_step: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        self.starts, self._run = starts, run
        self._every_step, self._clock = every_step, clock
        self.position = position
        """Up to where points were given."""
        self.newest = max(starts, default=0)
        self._left = [n for n in sorted(starts) if not self._is_copied(n)]
        self._metrics: AttemptMetrics | None = None
        self._points: Iterator[MetricPoint] | None = None
        self._reads_all = False
        self._next: MetricPoint | None = None
        self._pause_at = 0.0
        self.is_paused = False
        """Whether the last read ended though there is more."""

    def _is_copied(self, attempt: int) -> bool:
        """Whether a step was copied that only a later attempt made."""
        later = [start.step for n, start in self.starts.items() if n > attempt]
        return bool(later) and self.position.steps.get(TRAIN, -1) > min(later)

    def read(
        self, most: int, *, until: int | None = None, is_over: bool = False
    ) -> list[MetricPoint]:
        """At most so many of the next points, of steps up to `until`. Where the newest attempt
        `is_over`, also what it wrote last. It takes about READ_S at most: then `is_paused`."""
        points: list[MetricPoint] = []
        self._pause_at = time.monotonic() + READ_S
        self.is_paused = False
        while len(points) < most and (point := self._peek(is_over)):
            if until is not None and point.step > until:
                break
            self._next = None
            self.position = self.position.after(point, self.newest)
            points.append(point)
        return points

    @property
    def held_step(self) -> int | None:
        """The step of the next point, where one was read that is not to be given yet."""
        return self._next.step if self._next else None

    def _peek(self, is_over: bool) -> MetricPoint | None:
        while self._next is None and self._left and not self.is_paused:
            attempt = self._left[0]
            is_last = len(self._left) == 1
            if self._metrics is None:
                cut = min(
                    (s.position for n, s in self.starts.items() if n > attempt), default=NEVER
                )
                self._metrics = AttemptMetrics(
                    self._run, attempt, cut, every_step=self._every_step, clock=self._clock
                )
            if self._points is None:
                self._reads_all = is_over or not is_last
                self._points = self._metrics.read(is_over=self._reads_all)
            point = next(self._points, None)
            if point is None:
                self._points = None
                if is_over and not self._reads_all:  # it began before the attempt was over
                    continue
                if is_last:
                    return None
                self._metrics = None
                self._left.pop(0)
            elif point.step > self.position.steps.get(point.stream, -1):
                self._next = point
            else:
                self.is_paused = time.monotonic() > self._pause_at
        return self._next


def lost_step(starts: Mapping[int, AttemptStart], position: CurvePosition) -> int | None:
    """The step after which copied values are lost, because a later attempt began there; None where
    all that was copied still holds."""
    if not position.steps:
        return None
    if position.attempt > max(starts, default=0):
        return -1  # another run is in the place of the one that was copied
    later = [start.step for n, start in starts.items() if n > position.attempt]
    copied = max(position.steps.values())
    return min(later) if later and copied > min(later) else None


def step_to_rewrite_from(
    run: Run,
    starts: Mapping[int, AttemptStart],
    position: CurvePosition,
    lost: int,
) -> int:
    """The step from which on values are written again after a loss: in each stream with lost
    values, the last one that still holds is among them. A reader that drops values where a smaller
    step follows, stream by stream, then drops all that are lost. 0 where a stream has none. Rows
    are exact enough: an earlier step is right too."""
    streams = {stream for stream, step in position.steps.items() if step > lost}
    last = dict.fromkeys(streams, 0)
    reader = CurveReader(run, starts, CurvePosition())
    while points := reader.read(1000, is_over=True):
        held = [point for point in points if point.stream in last and point.step <= lost]
        last |= {point.stream: point.step for point in held}
        if any(point.stream == TRAIN and point.step > lost for point in points):
            break
    return min(last.values(), default=0)


def committed_step(run: Run) -> int:
    """The step of the newest checkpoint; 0 where there is none."""
    name = pointer(run.path / "last")
    return step_and_save(name)[0] if name else 0
