"""Feeds the curve of a run to a sink that may be slow, refuse, hang or die.

Invariants: one batch is under way at a time, and nothing else is kept: what the sink does not have
yet is in the run's files. After a failure the process of the sink is replaced, and the new one says
up to where it has the curve. Pauses between tries double, up to LONGEST_PAUSE_S. A change of state
is told of in one line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from stoker.errors import BadRequest
from stoker.history.metrics import TRAIN
from stoker.run.directory import Run
from stoker.track.curve import (
    AttemptStart,
    Clock,
    CurvePosition,
    CurveReader,
    lost_step,
    step_to_rewrite_from,
)
from stoker.track.process import SinkProcess
from stoker.track.sink import SinkKind

BATCH = 200
"""Points in a message."""
ANSWER_S = 60.0
"""Seconds after which a sink that does not answer counts as hanging."""
FIRST_PAUSE_S, LONGEST_PAUSE_S, LAST_PAUSE_S = 2.0, 300.0, 5.0
"""Pauses between tries; the last one is the longest once the run has ended."""


class Feed:
    """Hands the points of a run to one sink."""

    def __init__(
        self,
        run: Run,
        kind: SinkKind,
        start: Callable[[], SinkProcess],
        tell: Callable[[str], None],
        *,
        every_step: bool = False,
        clock: Clock = time.monotonic,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._run, self._kind, self._start, self._tell = run, kind, start, tell
        self._every_step, self._clock, self._answer_s = every_step, clock, answer_s
        self._process: SinkProcess | None = None
        self._reader: CurveReader | None = None
        self._starts: Mapping[int, AttemptStart] = {}
        self._position: CurvePosition | None = None
        """Up to where the sink has the curve; None before it has said so."""
        self._until: int | None = None
        self._is_over = self._has_more = False
        self._deadline = self._retry_at = 0.0
        self._pause_s = FIRST_PAUSE_S
        self.problem = ""
        """Why the sink does not take values; empty where it does."""
        self.progress_at = clock()
        """When the sink last took something."""
        self.points = self._under_way = 0
        """How many points it took."""
        self.step: int | None = None
        """The last training step that it has; None before it has said so."""

    def offer(self, starts: Mapping[int, AttemptStart], until: int | None, is_over: bool) -> None:
        """There may be new points: those of steps up to `until`, and where the newest attempt
        `is_over`, all that it wrote."""
        self._starts, self._until, self._has_more = starts, until, True
        if is_over and not self._is_over:
            self.progress_at = self._clock()
        self._is_over = is_over

    @property
    def held_step(self) -> int | None:
        """The first step that is held back until a checkpoint covers it."""
        return self._reader.held_step if self._reader else None

    @property
    def is_idle(self) -> bool:
        """Whether the sink has everything that was offered."""
        is_open = self._process is not None and self._position is not None
        return is_open and not self._has_more and not self.is_busy

    @property
    def is_busy(self) -> bool:
        """Whether an answer of the sink is awaited."""
        return self._process is not None and self._process.is_busy

    @property
    def has_work(self) -> bool:
        """Whether something was offered that the sink does not have."""
        return self._has_more or self.is_busy

    def withdraw(self) -> None:
        """Offer nothing more than what is under way."""
        self._has_more = False

    def pump(self, within_s: float) -> None:
        """Take an answer, for which this waits so long at most, and hand over the next batch.
        Raises BadRequest where the sink can never take this run."""
        if self._process is None:
            pause_s = self._retry_at - self._clock()
            if pause_s > 0:
                time.sleep(min(pause_s, within_s))
                return
            self._open()
        if self.is_busy and not self._take_answer(within_s):
            return
        if self._process and not self.is_busy and self._has_more:
            self._hand_over()

    def _open(self) -> None:
        try:
            self._process = self._start()
        except OSError as error:
            self._fail(str(error))
            return
        self._position = None
        self._process.open()
        self._deadline = self._clock() + self._answer_s

    def _take_answer(self, within_s: float) -> bool:
        """Wait for an answer and take it. Returns whether there was one that is no error."""
        assert self._process is not None
        answer = self._process.answer(within_s)
        if answer is None:
            if self._clock() > self._deadline:
                self._fail(f"no answer for {self._answer_s:g} s")
            return False
        try:
            position = CurvePosition.of(answer["position"])
        except (KeyError, ValueError, TypeError):
            self._take_error(answer)
            return False
        self._take_position(position)
        return True

    def _take_error(self, answer: Mapping[str, Any]) -> None:
        reason = str(answer.get("error", "an answer that is none"))
        if answer.get("is_refusal") and not self.points and self._position is None:
            self.end()
            raise BadRequest(f"{self._kind.title}: {reason}")
        self._fail(reason)

    def _take_position(self, position: CurvePosition) -> None:
        if self._reader is not None and self._reader.position.steps != position.steps:
            self._reader = None  # the sink has lost some of it, or has more than was known
        self._position, self.step = position, max(position.steps.get(TRAIN, 0), 0)
        self.points, self._under_way = self.points + self._under_way, 0
        self.progress_at, self._pause_s = self._clock(), FIRST_PAUSE_S
        if self.problem:
            self.problem = ""
            self._tell(f"{self._kind.title} takes values again")

    def _hand_over(self) -> None:
        """Send the next points, or have the sink forget what an attempt replaces."""
        assert self._process is not None and self._position is not None
        if self._reader is not None and self._reader.starts is not self._starts:
            self._reader = None
        if self._reader is None and self._sends_back():
            return
        if self._reader is None:
            self._reader = CurveReader(
                self._run,
                self._starts,
                self._position,
                every_step=self._every_step,
                clock=self._clock,
            )
        points = self._reader.read(BATCH, until=self._until, is_over=self._is_over)
        if not points:
            self._has_more = self._reader.is_paused
            if self._has_more:  # skipping what the sink has is progress
                self.progress_at = self._clock()
            return
        self._under_way = len(points)
        self._process.write(points, self._reader.position)
        self._deadline = self._clock() + self._answer_s

    def _sends_back(self) -> bool:
        assert self._process is not None and self._position is not None
        lost = lost_step(self._starts, self._position)
        if lost is None:
            return False
        step = 0
        if self._kind.takes_back:
            step = step_to_rewrite_from(self._run, self._starts, self._position, lost)
        else:
            self._tell(f"note: {self._kind.title} cannot take values back: a new curve is begun")
        self._process.back(step, max(self._starts, default=0))
        self._deadline = self._clock() + self._answer_s
        return True

    def _fail(self, reason: str) -> None:
        """The sink does not work: end its process, and try again later."""
        self.end()
        pause_s = min(self._pause_s, LAST_PAUSE_S) if self._is_over else self._pause_s
        self._retry_at = self._clock() + pause_s
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        if reason != self.problem:
            self.problem = reason
            self._tell(
                f"note: {self._kind.title} does not take values ({reason}): the run is not "
                f"affected; next try in {pause_s:g} s"
            )

    def close(self, outcome: str, within_s: float) -> bool:
        """Have the sink finish. Returns whether it did so within so many seconds."""
        answer = None
        if self._process and not self._process.is_busy:
            self._process.close(outcome)
            answer = self._process.answer(within_s)
            if answer and "error" in answer:
                self.problem = str(answer["error"])
        self.end()
        return answer is not None and "error" not in answer

    def end(self) -> None:
        """End the process of the sink, whatever it does."""
        process, self._process = self._process, None
        if process:
            process.kill()
        self._reader, self._position, self._under_way = None, None, 0
