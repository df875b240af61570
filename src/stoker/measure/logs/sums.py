"""The lines of one rank of a log, as sums over steps.

A running mean times its steps is a sum, and the difference of two sums is what happened between
two lines. So a line covers all its steps, not only the latest one. Sums telescope: the rounding of
the lines between the first and the last cancels. The first line of a log is kept apart: it contains
the start of the workers and the tuning of the first step. Memory is bounded for any log.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from stoker.measure.logs.line import LogLine

MOST_STRETCHES = 128
MOST_ACCURACIES = 256
ROUNDED_AWAY = 0.1
"""A stretch is long enough if rounding moves its wait by at most this share of its time."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A number of steps, and the seconds that they took and waited."""

    steps: int = 0
    time_s: float = 0.0
    data_s: float = 0.0
    rounding_s: float = 0.0
    """The largest error of the wait that rounding can cause."""

    def __add__(self, other: Sum) -> Sum:
        rounding_s = self.rounding_s + other.rounding_s
        steps, time_s = self.steps + other.steps, self.time_s + other.time_s
        return Sum(steps, time_s, self.data_s + other.data_s, rounding_s)

    def __sub__(self, other: Sum) -> Sum:
        """The sum from one line to a later one; the rounding errors of both add up."""
        return self + Sum(-other.steps, -other.time_s, -other.data_s, other.rounding_s)

    @property
    def step_s(self) -> float:
        return max(self.time_s / self.steps, 0.0) if self.steps else 0.0

    @property
    def wait_s(self) -> float:
        """At most the step: rounding can make the wait look longer."""
        return min(max(self.data_s / self.steps, 0.0), self.step_s) if self.steps else 0.0

    @property
    def share(self) -> float:
        return self.wait_s / self.step_s if self.step_s else 0.0

    @property
    def blur(self) -> float:
        """The rounding error of the wait, as a share of the time."""
        return self.rounding_s / self.time_s if self.time_s > 0 else 1.0


def counts_from_one(first: LogLine, second: LogLine | None) -> bool:
    """Whether `[11/5005]` means 11 steps done, as in new programs; old ones print the index of a
    step, and 12 are done. Both print every tenth step or so."""
    if first.format.window:
        return False
    alone = first.time_s == first.mean_time_s and first.data_s == first.mean_data_s
    if first.index == 1 and alone:
        return True
    if second is None or second.epoch != first.epoch:
        return first.index > 1 and first.index % 10 == 1
    gap = second.index - first.index
    return gap > 1 and first.index % gap == 1


class RankLines:
    """The lines of one rank of one run, from its first to its last epoch."""

    def __init__(self, first: LogLine) -> None:
        self.first = self.last = first
        self.lines = self.epochs = 1
        self.gap: int | None = None
        self.warmup = self.rest = Sum()
        """What the first line of the log covers, and everything after it."""
        self.starts = Sum()
        """What the first lines of the later epochs cover; part of the rest."""
        self.uncovered = 0
        """Steps that no line covers."""
        self.stretches: list[Sum] = []
        self.waits: Counter[float] = Counter()
        """How many lines show each wait, to two digits."""
        self.accuracies: set[str] = set()
        self.images = self.images_lines = 0.0
        self._from_one: bool | None = None
        self._earlier = self._begin = Sum()
        """Finished epochs without the warm-up, and the part of this epoch that is warm-up."""
        self._mark = self._now = Sum()
        """The epoch up to where the current stretch begins, and up to the latest line counted."""
        self._skipped = 0
        """Steps of the epoch that lie between windows."""

    def add(self, line: LogLine) -> None:
        self._take_first(line)
        if line.epoch == self.last.epoch:
            self.gap = self.gap or line.index - self.last.index
        self._take(line)
        self.last = line
        self.lines += 1

    def finish(self) -> None:
        """Complete the sums after the last line; a single line is counted as it is."""
        self._take_first(None)
        if self.rest.steps:
            self._close_stretch()
        if not self.waits:
            self._count_wait(self.first)

    def _take_first(self, second: LogLine | None) -> None:
        """Count the first line, unless it is counted: the second one tells how."""
        if self._from_one is None:
            self._from_one = counts_from_one(self.first, second)
            self._take(self.first, is_first=True)

    def _count_wait(self, line: LogLine) -> None:
        self.waits[float(f"{line.data_s:.2g}")] += 1

    def _take(self, line: LogLine, is_first: bool = False) -> None:
        # The first step of a log shows the warm-up, not the run.
        if not (is_first and line.index <= 1):
            self._count_wait(line)
        if line.images is not None:
            self.images, self.images_lines = self.images + line.images, self.images_lines + 1
        # The last batch of an epoch may be smaller.
        if line.index + 1 < line.total and len(self.accuracies) < MOST_ACCURACIES:
            self.accuracies.update(line.accuracies)
        new_epoch = line.epoch != self.last.epoch
        if new_epoch:
            self._close_stretch()
            self._earlier += self._now - self._begin
            self.epochs += 1
            self._begin = self._mark = self._now = Sum()
            self._skipped = 0
        before, now = self._now, self._up_to(line)
        if now is None:
            return
        self._now = now
        if is_first:
            self.warmup = self._begin = self._mark = now
            return
        if new_epoch:
            self.starts += now
            self._mark = now
        self.rest = self._earlier + (now - self._begin)
        if now.steps > before.steps and not new_epoch and (now - self._mark).blur <= ROUNDED_AWAY:
            self._close_stretch()

    def _up_to(self, line: LogLine) -> Sum | None:
        """The sum of an epoch up to a line; None where its window overlaps the last one counted."""
        done, before = line.index + (0 if self._from_one else 1), self._now
        if window := line.format.window:
            steps = min(window, done)
            skipped = done - steps - before.steps - self._skipped
            if skipped < 0:
                return None
            self._skipped += skipped
            self.uncovered += skipped
            rounding = line.rounding_s * steps
            return before + Sum(steps, line.time_s * steps, line.data_s * steps, rounding)
        time_s = before.time_s + line.time_s * (done - before.steps)
        if line.mean_time_s is not None:
            time_s = line.mean_time_s * done
        mean = line.data_s if line.mean_data_s is None else line.mean_data_s
        return Sum(done, time_s, mean * done, line.rounding_s * done)

    def _close_stretch(self) -> None:
        stretch, self._mark = self._now - self._mark, self._now
        if stretch.steps <= 0 or stretch.blur > ROUNDED_AWAY:
            return
        self.stretches.append(stretch)
        if len(self.stretches) > MOST_STRETCHES:
            odd = self.stretches[-1:] if len(self.stretches) % 2 else []
            pairs = zip(self.stretches[::2], self.stretches[1::2], strict=False)
            self.stretches = [one + two for one, two in pairs] + odd
