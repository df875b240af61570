"""The output of a run: a live progress bar on a terminal, timed lines in a pipe or log file.

Invariants: everything shown comes from the events that are written to the run directory. A pipe
gets no control characters and, after the first evaluations, at most one line per interval.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from stoker.fleet.launcher import is_rank
from stoker.measure.spans import APART, WAITING
from stoker.price.ledger.budget import is_budget_stop
from stoker.run.kinds import Event
from stoker.text import clock, one_line, plural, printable, say, wrapped

FREE_LINES = 20
"""Evaluations that a pipe shows at once, before they wait for the interval."""
WIDE = 120
"""Columns from which a terminal gets a longer bar."""
LESS_IMPORTANT = ("step", "data", "top1", "rate", "epoch")
"""Parts of the live line that a narrow terminal leaves out, in this order."""
RECENT = 50
"""Steps from which the rate and the remaining time are computed."""


class EpochProgress:
    """Sums and means of the current epoch."""

    def __init__(self, attempt: Event) -> None:
        self.attempt = attempt
        self.recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self.last: Event | None = None
        self.begin_epoch(0)

    def begin_epoch(self, number: int) -> None:
        self.epoch, self.steps, self.images = number, 0, 0
        self.wall_s = self.data_s = 0.0
        self.sums = [0.0, 0.0, 0.0]

    def add(self, event: Event) -> None:
        if int(event["epoch"]) != self.epoch:
            self.begin_epoch(int(event["epoch"]))
        self.last = event
        self.steps += 1
        self.images += event["images"]
        self.wall_s += step_seconds(event["parts"])
        self.data_s += data_seconds(event["parts"])
        self.sums = [a + b for a, b in zip(self.sums, event["sums"], strict=True)]
        self.recent.append((step_seconds(event["parts"]), event["batch"]))

    @property
    def rate(self) -> float:
        """Images per second of all ranks over the latest steps."""
        return sum(batch for _, batch in self.recent) / max(sum(w for w, _ in self.recent), 1e-9)

    @property
    def remaining_s(self) -> float:
        assert self.last is not None
        left = self.attempt["epochs"] * self.attempt["samples"] - self.last["position"]
        return float(left / max(self.rate, 1e-9))

    def line(self) -> str:
        """The latest step, each number with its mean over the epoch in parentheses."""
        event = self.last
        assert event is not None
        images, steps, parts = event["images"], max(self.steps, 1), event["parts"]
        loss, top1, top5 = (total / images for total in event["sums"])
        mean = [total / max(self.images, 1) for total in self.sums]
        return (
            f"epoch {event['epoch']:.2f}/{self.attempt['epochs']}"
            f"  step {event['step'] + 1:,}/{self.attempt['steps']:,}"
            f"  time {step_seconds(parts):.3f} ({self.wall_s / steps:.3f})"
            f"  data {data_seconds(parts):.3f} ({self.data_s / steps:.3f})"
            f"  loss {loss:.3f} ({mean[0]:.3f})"
            f"  top1 {top1:.1%} ({mean[1]:.1%})"
            + (f"  top5 {top5:.1%} ({mean[2]:.1%})" if shows_top5(self.attempt) else "")
            + f"  {self.rate:,.0f} img/s  eta {clock(self.remaining_s)}"
        )


def step_seconds(parts: dict[str, float]) -> float:
    """The seconds of a step, without a save or an evaluation before it."""
    return sum(seconds for part, seconds in parts.items() if part not in APART)


def data_seconds(parts: dict[str, float]) -> float:
    """The seconds that a step waited for its images."""
    return sum(parts.get(part, 0.0) for part in WAITING)


def start_lines(event: Event) -> list[str]:
    loaded = [event["weights"]] if event.get("weights") else []
    lines = [*loaded, *masks_line(event), event["derived"]]
    lines += [f"note: {text}" for text in event["warnings"]]
    reasons = event.get("torn_reasons", {})
    for name in event["torn"]:
        reason = f": {one_line(reasons[name])}" if name in reasons else ""
        lines.append(f"note: checkpoint {name} is torn and was skipped{reason}")
    if event["position"]:
        lines.append(f"resumed at step {event['step']:,} of {event['steps']:,}")
    return lines


def masks_line(event: Event) -> list[str]:
    """How many weights a pruned run keeps, by its `attempt` event; nothing for other runs."""
    if "masks" not in event:
        return []
    kept, total = event["masks"]["kept"], event["masks"]["total"]
    return [f"masks: {kept:,} of {total:,} kernel weights kept ({kept / total:.2%})"]


def shows_top5(attempt: Event | None) -> bool:
    """Whether there are enough classes for top-5 accuracy to mean something."""
    return attempt is None or attempt.get("classes", 1000) > 5


def evaluation_line(event: Event, best: bool, with_top5: bool = True) -> str:
    images = event["images"]
    top5 = f"top-5 {event['top5'] / images:.2%}, " if with_top5 else ""
    return (
        f"evaluated at epoch {event['epoch']:.2f}: top-1 {event['top1'] / images:.2%}, "
        f"{top5}loss {event['loss']:.3f} "
        f"({plural(images, 'image')} in {event['seconds']:.1f} s){', best so far' if best else ''}"
    )


def end_line(event: Event, run: str) -> str:
    if event["outcome"] == "finished":
        best = f": best top-1 {event['best']:.2%}" if event.get("best", -1) >= 0 else ""
        early = f" early ({event['reason']})" if event.get("reason") else ""
        return f"finished{early}{best}; for details: stoker explain {run}"
    if event["outcome"] == "interrupted":
        saved = event.get("saved", True)
        if is_budget_stop(event["reason"]):
            return f"stopped at step {event.get('step', 0):,}, everything saved ({event['reason']})"
        return (
            f"stopped at step {event.get('step', 0):,} ({event['reason']})"
            f"{', everything saved' if saved else ''}: the same command goes on"
            f"{' from here' if saved else ' from the newest checkpoint'}"
        )
    if event["outcome"] == "rolled back":
        return f"alarm: {event['reason']}"
    if is_rank():  # the launcher may go on, and does not say why
        return f"failed: {one_line(event['reason'])}"
    at = f" at step {event['step']:,}" if "step" in event else ""
    return f"failed{at}; for details: stoker explain {run}"  # the command itself prints why


class PlainConsole:
    """Timed lines for pipes and log files. Called with each event."""

    free_lines: float = FREE_LINES

    def __init__(
        self,
        run: str,
        interval_s: float = 30.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._interval, self._clock = run, interval_s, clock
        self._stream, self._printed_at = stream or sys.stdout, clock()
        self._evaluations, self._best = 0, -1.0
        self._alarms: set[str] = set()
        """Printed since the last save."""
        self._start_lines: list[str] = []
        self._epoch: EpochProgress | None = None
        self._verdict: list[str] = []
        self._limit = self._trouble = ""

    def print(self, text: str) -> None:
        say(text, stream=self._stream, wrap=False)
        self._printed_at = self._clock()

    @property
    def due(self) -> bool:
        return self._clock() - self._printed_at >= self._interval

    def __call__(self, event: Event) -> None:
        kind = event["kind"]
        if kind == "attempt":
            self._epoch = EpochProgress(event)
            self._best = event.get("best", -1.0)
            for line in start_lines(event):
                # A roll-back starts another attempt in this process: known lines are not repeated.
                if line not in self._start_lines:
                    known = f"note: {self._trouble}: "  # what the alarm of the roll-back has said
                    self.print(
                        f"note: {line.removeprefix(known)}" if line.startswith(known) else line
                    )
                    self._start_lines.append(line)
        elif kind == "step" and self._epoch:
            self._epoch.add(event)
            if self.due:
                self.print(self._epoch.line())
        elif kind == "evaluation":
            self._evaluation(event)
        elif kind == "save_failed" and (reason := event["reason"]) not in self._alarms:
            self._alarms.add(reason)
            self.print(f"alarm: {reason}; training goes on, what was saved before is safe")
        elif kind == "checkpoint":
            self._alarms.clear()
        elif kind == "note" or (kind == "interval" and event["first"]):
            self.print(event["words"] if kind == "interval" else f"note: {event['words']}")
        elif kind == "verdict":
            self._print_verdict(event)
        elif kind == "skipped":
            self.print(f"step {event['step']:,} skipped: its batch had caused a roll-back")
        elif kind == "end":
            if event["outcome"] == "finished" and self._verdict:
                self.print(self._verdict[0])
            if event["outcome"] == "rolled back":
                self._trouble = event["reason"]
            if event["outcome"] != "refused":  # the command itself prints why
                self.print(end_line(event, self._run))

    def _print_verdict(self, event: Event) -> None:
        """Print what limits the run, during the run, where it has changed."""
        attempt, self._verdict = self._epoch.attempt if self._epoch else {}, event["lines"]
        if event["words"] != self._limit and event["step"] < attempt.get("steps", 0):
            self._limit = event["words"]
            for line in self._verdict:
                self.print(line)

    def _evaluation(self, event: Event) -> None:
        top1 = event["top1"] / event["images"]
        best, self._best = top1 > self._best, max(top1, self._best)
        self._evaluations += 1
        if self._evaluations <= self.free_lines or self.due:
            attempt = self._epoch.attempt if self._epoch else None
            self.print(evaluation_line(event, best, shows_top5(attempt)))


class LiveConsole(PlainConsole):
    """The same lines, above a progress bar."""

    free_lines = float("inf")

    def __init__(self, run: str) -> None:
        super().__init__(run, interval_s=float("inf"))
        self._console = RichConsole()
        self._bar_width = 20 if self._console.width >= WIDE else 8
        columns: list[Any] = [
            BarColumn(self._bar_width),
            TextColumn("{task.description}", markup=False),
        ]
        self._progress = Progress(*columns, console=self._console, refresh_per_second=2)
        self._bar: TaskID | None = None

    def print(self, text: str) -> None:
        for line in wrapped(printable(text), self._console.width):
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __call__(self, event: Event) -> None:
        kind = event["kind"]
        if kind == "end" and event["outcome"] != "rolled back":
            self.stop()  # the last line comes below the bar, not above it
        super().__call__(event)
        if kind == "attempt" and self._bar is None:
            self._bar = self._progress.add_task("starting", total=event["steps"])
            self._progress.start()
        elif self._bar is None:
            return
        elif kind in ("step", "evaluation") and self._epoch and self._epoch.last:
            done = self._epoch.last["step"] + 1
            self._progress.update(self._bar, completed=done, description=self.short_line())
        elif kind == "evaluating":
            self._progress.update(self._bar, description="evaluating")

    def short_line(self) -> str:
        """The latest step; a narrow terminal gets fewer parts, always the loss and the eta."""
        epoch = self._epoch
        assert epoch is not None and epoch.last is not None
        event, attempt = epoch.last, epoch.attempt
        loss, top1 = (total / event["images"] for total in event["sums"][:2])
        parts = {
            "epoch": f"epoch {event['epoch']:.1f}/{attempt['epochs']}",
            "step": f"step {event['step'] + 1:,}/{attempt['steps']:,}",
            "loss": f"loss {loss:.3f}",
            "top1": f"top1 {top1:.1%}",
            "rate": f"{epoch.rate:,.0f} img/s",
            "data": f"data wait {epoch.data_s / max(epoch.wall_s, 1e-9):.0%}",
            "eta": f"eta {clock(epoch.remaining_s)}",
        }
        width = self._console.width - self._bar_width - 1
        for name in LESS_IMPORTANT:
            if len("  ".join(parts.values())) > width:
                del parts[name]
        return "  ".join(parts.values())

    def stop(self) -> None:
        self._progress.stop()


def console_for(run: str, interval_s: float) -> PlainConsole:
    return LiveConsole(run) if sys.stdout.isatty() else PlainConsole(run, interval_s)
