"""Sinks that a test drives: one inside the test's own process, and programs that misbehave."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.history.metrics import MetricPoint
from stoker.track.curve import CurvePosition

HANGS = "import sys\nfor line in sys.stdin: pass"
DIES = "import sys\nsys.stdin.readline(); print('out of luck', file=sys.stderr); sys.exit(3)"
PRINTS_NONSENSE = "import sys\nfor line in sys.stdin: print('nonsense', flush=True)"
REFUSES = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"error": "the server says no"}), flush=True)
"""


def program(source: str) -> list[str]:
    return [sys.executable, "-c", source]


@dataclass
class KeptValues:
    """What a sink keeps, however often its process is replaced."""

    points: list[MetricPoint] = field(default_factory=list)
    position: CurvePosition = field(default_factory=CurvePosition)
    outcomes: list[str] = field(default_factory=list)
    backs: list[int] = field(default_factory=list)

    def steps(self, stream: str = "train") -> list[int]:
        return [point.step for point in self.points if point.stream == stream]


class FakeProcess:
    """Answers as a SinkProcess does. `behaviour` is for the messages in turn: `ok`, an error text,
    `hang`, or `lose` (the values are taken, and the process dies before it answers)."""

    def __init__(self, kept: KeptValues, behaviour: list[str] | None = None) -> None:
        self.kept, self.behaviour = kept, behaviour if behaviour is not None else []
        self.is_busy = self.is_killed = False
        self._answer: dict[str, Any] | None = None

    def _take(self, work: Any) -> None:
        assert not self.is_busy
        self.is_busy = True
        kind = self.behaviour.pop(0) if self.behaviour else "ok"
        self._answer = None if kind == "hang" else {"error": kind}
        if kind in ("ok", "lose"):
            work()
            self._answer = {"position": self.kept.position.data()}
            if kind == "lose":
                self._answer = {"error": "its process ended with -9"}

    def open(self) -> None:
        self._take(lambda: None)

    def write(self, points: Sequence[MetricPoint], position: CurvePosition) -> None:
        def work() -> None:
            self.kept.points += points
            self.kept.position = position

        self._take(work)

    def back(self, step: int, attempt: int) -> None:
        def work() -> None:
            self.kept.backs.append(step)
            self.kept.points = [point for point in self.kept.points if point.step < step]
            self.kept.position = self.kept.position.before(step, attempt)

        self._take(work)

    def close(self, outcome: str) -> None:
        self._take(lambda: self.kept.outcomes.append(outcome))

    def answer(self, within_s: float) -> dict[str, Any] | None:
        if self._answer is not None:
            self.is_busy = False
        return self._answer

    def kill(self) -> None:
        self.is_killed = True
