"""What a screen shows of a run: plain data and texts, made from its history.

Invariants: every text is printable, whatever the files of the run hold. What was not measured is
absent, never zero. Nothing here reads a file, except through the history that is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stoker.errors import StokerError
from stoker.history.curves import recent_points
from stoker.history.history import RATE_S, RunHistory
from stoker.measure.spans import APART, WAITING
from stoker.run.listing import NEW, RUNNING
from stoker.run.rows import ROW_S
from stoker.show.watch.run_texts import (
    attempt_texts,
    incident_texts,
    machine_texts,
    money_texts,
    rank_text,
)
from stoker.text import clock, one_line, printable, seconds, shown

WAITING_FOR, GONE, UNREADABLE = "waiting", "gone", "unreadable"
LIVING = (RUNNING, NEW, WAITING_FOR)
"""States in which a run may change at any moment."""
AXES = ("step", "epoch", "time")
MOST_POINTS = 400
"""Points of a curve: more than the dots of a chart."""
FEWEST_PLACES, MOST_PLACES = 30, 300
"""Points of the curve of the training loss: the more, the longer a run has trained."""
SILENT_S = 90.0
"""A running run that has written nothing for longer is said to be silent."""
PARTS = {
    "data wait": WAITING,
    "copy": ("to_device",),
    "forward": ("forward",),
    "backward": ("backward",),
    "exchange": ("exchange",),
    "optimiser": ("optimiser",),
}
"""The parts of a step as they are shown; what is left is `other`."""
BETWEEN = {"checkpoint": "saving", "evaluation": "evaluating", "compile": "compiling"}
"""What is done between steps, where it is not called by its name."""


@dataclass(frozen=True)
class Series:
    """A curve, over each of AXES. A value may be NaN or infinite."""

    y: tuple[float, ...] = ()
    step: tuple[float, ...] = ()
    epoch: tuple[float, ...] = ()
    time: tuple[float, ...] = ()
    """Seconds of training."""

    def x(self, axis: str) -> tuple[float, ...]:
        values: tuple[float, ...] = getattr(self, axis)
        return values


@dataclass(frozen=True)
class CurveSet:
    loss: Series = Series()
    accuracy: Series = Series()
    lr: Series = Series()


@dataclass(frozen=True)
class WatchedRun:
    """A run, ready to be shown."""

    path: Path
    name: str
    """Its path; of a cell of a grid, its settings."""
    state: str
    state_text: str = ""
    """The state, and why where there is a reason."""
    notice: str = ""
    """What a person must know first: that the run is gone, damaged or was replaced."""
    about: str = ""
    """Model and data set."""
    share: float | None = None
    """How much of the run is done."""
    epoch: str = ""
    step: str = ""
    eta: str = ""
    attempt: str = ""
    curves: CurveSet = CurveSet()
    loss: str = ""
    accuracy: str = ""
    lr: str = ""
    parts: tuple[tuple[str, float], ...] = ()
    """The share of each part in the steps of the last minute."""
    between: str = ""
    """What was done between these steps."""
    speed: str = ""
    rate: str = ""
    """Images a second, and nothing else."""
    ranks: str = ""
    machines: tuple[tuple[str, ...], ...] = ()
    """Lines, each of several groups of figures that may stand on lines of their own."""
    verdict: tuple[str, ...] = ()
    verdict_at: str = ""
    money: str = ""
    dollars: str = ""
    """Dollars so far, and nothing else."""
    checkpoint: str = ""
    attempts: tuple[str, ...] = ()
    incidents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Findings:
    """What a watcher knows beside the history."""

    name: str = ""
    """A name in place of the path."""
    checkpoint: str = ""
    verdict: Sequence[str] = ()
    """The verdict, where no event of the run holds one."""
    notice: str = ""
    curves: CurveSet = field(default_factory=CurveSet)


def watched(history: RunHistory, findings: Findings, now: float) -> WatchedRun:
    """The run as it is now. Never raises for what is in its files."""
    path, name = history.run.path, findings.name or shown(str(history.run.path))
    state, state_text = state_of_run(history, now)
    about, notice = about_text(history)
    money, dollars = money_texts(history, path, state == RUNNING, now)
    verdict, verdict_at = verdict_texts(history, findings.verdict)
    rate = history.images_per_s
    share, step, epoch = progress_texts(history)
    parts, between = part_shares(history)
    return WatchedRun(
        path=path,
        name=name,
        state=state,
        state_text=state_text,
        notice=notice or findings.notice,
        about=about,
        share=share,
        epoch=epoch,
        step=step,
        eta=eta_text(history, state),
        attempt=f"attempt {history.newest}" if history.newest else "",
        curves=findings.curves,
        loss=last_loss(findings.curves.loss, len(history.ranks)),
        accuracy=accuracy_text(history),
        lr=lr_text(history),
        parts=parts,
        between=between,
        speed=speed_text(history),
        rate=f"{rate:,.0f} images/s" if rate else "",
        ranks=rank_text(history),
        machines=machine_texts(history),
        verdict=verdict,
        verdict_at=verdict_at,
        money=money,
        dollars=dollars,
        checkpoint=findings.checkpoint,
        attempts=attempt_texts(history, state),
        incidents=incident_texts(history, now),
    )


def unavailable(path: Path, state: str, notice: str) -> WatchedRun:
    """A run of which nothing can be shown but why."""
    return WatchedRun(path, shown(str(path)), state, state, printable(one_line(notice)))


def state_of_run(history: RunHistory, now: float) -> tuple[str, str]:
    """The state, and the state with its reason."""
    state, end = history.state(now), history.end
    reason = printable(one_line(end["reason"])) if end else ""
    if state == RUNNING:
        silent_s = now - history.last if history.last else 0.0
        return state, f"running, silent for {clock(silent_s)}" if silent_s > SILENT_S else state
    return state, f"{state} ({reason})" if reason else state


def about_text(history: RunHistory) -> tuple[str, str]:
    """Model and data set, or why they are not known."""
    try:
        record = history.record
    except (StokerError, OSError, ValueError) as error:
        return "", printable(one_line(str(error)))
    data = shown(Path(record["data"]).name or record["data"])
    return f"{printable(one_line(record['values']['model']))} on {data}", ""


def progress_texts(history: RunHistory) -> tuple[float | None, str, str]:
    """How much is done, the step and the epoch."""
    start, points = history.start, history.points
    if start is None:
        return None, "", ""
    done, total = history.steps, start["steps"]
    epoch = epoch_at(history, points[-1].position, points[-1].epoch) if points else 0.0
    epochs = f" of {start['epochs']:g}" if start["epochs"] else ""
    return (
        min(done / total, 1.0) if total else None,
        f"step {done:,} of {total:,}" if total else f"step {done:,}",
        f"epoch {epoch:.2f}{epochs}",
    )


def epoch_at(history: RunHistory, position: float, before: float) -> float:
    """The epoch at a position; that of the step `before` it where the set's size is unknown."""
    samples = history.start["samples"] if history.start else 0
    return position / samples if samples else before


def eta_text(history: RunHistory, state: str) -> str:
    """When a run will end, or how long it trained."""
    if state != RUNNING:
        return f"trained {clock(history.ledger.total_s)}" if history.points else ""
    remaining_s = history.remaining_s
    return "" if remaining_s is None else f"ends in {clock(remaining_s)}"


def last_loss(loss: Series, ranks: int) -> str:
    """The latest training loss; that it was not a number somewhere; and that it is of one rank."""
    if not loss.y:
        return ""
    notes = ["of rank 0"] if ranks > 1 else []
    if not np.isfinite(loss.y).all():
        notes.append("diverged" if not np.isfinite(loss.y[-1]) else "with gaps: not a number")
    return f"{loss.y[-1]:.4g}" + (f" ({', '.join(notes)})" if notes else "")


def accuracy_text(history: RunHistory) -> str:
    """The latest accuracy and the best one."""
    evaluations, best = history.evaluations, history.best
    if not evaluations or best is None:
        return ""
    last = evaluations[-1]
    share, best_share = (event["top1"] / event["images"] for event in (last, best))
    text = f"{share:.1%}"
    return text if best is last else f"{text}, best {best_share:.1%} at epoch {best['epoch']:.2f}"


def lr_text(history: RunHistory) -> str:
    rates = (point.lr for point in reversed(history.points) if point.lr is not None)
    rate = next(rates, None)
    return "" if rate is None else f"{rate:.3g}"


def speed_text(history: RunHistory) -> str:
    """Images a second, in the last minute and over all, and the time of a step."""
    rate, mean = history.images_per_s, history.ledger.images_per_s
    recent = recent_points(history.points, RATE_S)
    steps = sum(point.count for point in recent)
    if not rate or not steps:
        return ""
    step_s = sum(point.step_s * point.count for point in recent) / steps
    over_all = f" ({mean:,.0f} over all)" if mean else ""
    return f"{rate:,.0f} images/s{over_all}, {seconds(step_s)} a step"


def part_shares(history: RunHistory) -> tuple[tuple[tuple[str, float], ...], str]:
    """The share of each part in the steps of the last minute, and what was done between them."""
    recent = recent_points(history.points, RATE_S)
    sums: dict[str, float] = {}
    for point in recent:
        for part, value in point.parts.items():
            sums[part] = sums.get(part, 0.0) + max(value, 0.0)
    step_s = sum(value for part, value in sums.items() if part not in APART)
    all_s = sum(sums.values())
    if step_s <= 0:
        return (), ""
    shares = {
        name: sum(sums.get(part, 0.0) for part in parts) / step_s for name, parts in PARTS.items()
    }
    shares["other"] = max(1.0 - sum(shares.values()), 0.0)
    between = [
        f"{BETWEEN.get(part, part)} {sums[part] / all_s:.0%}"
        for part in APART
        if sums.get(part, 0.0) >= 0.005 * all_s
    ]
    return tuple(shares.items()), ", ".join(between)


def verdict_texts(history: RunHistory, computed: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The lines of the newest verdict, and the step it was given at."""
    lines, step = computed, None
    for event in reversed(history.verdicts):
        if event["lines"]:
            lines, step = event["lines"], event["step"]
            break
    texts = tuple(printable(one_line(line)) for line in lines)
    return texts, "" if step is None else f"as of step {step:,}"


def curves_of(history: RunHistory) -> CurveSet:
    """The curves of a run, each over all axes."""
    points = sorted(history.points, key=lambda point: point.position)
    epochs = (epoch_at(history, point.position, point.epoch) for point in points)
    rows = ((p.position, p.step, epoch, p.seconds) for p, epoch in zip(points, epochs, strict=True))
    known = np.array([(0.0, 0.0, 0.0, 0.0), *rows])

    def series(position: Sequence[float], y: Sequence[float]) -> Series:
        columns = [np.interp(position, known[:, 0], known[:, axis]).tolist() for axis in (1, 2, 3)]
        return Series(tuple(y), *map(tuple, columns))

    # Rows are shorter while a run is followed: places as long as a row of a summary even that out.
    rows_made = int(history.ledger.training_s / ROW_S)
    loss = history.sums.curve(min(max(rows_made, FEWEST_PLACES), MOST_PLACES))
    evaluations = history.evaluations
    every = max(-(-len(points) // MOST_POINTS), 1)
    rates = [point for point in points[::-every][::-1] if point.lr is not None]
    return CurveSet(
        loss=series(loss.position.tolist(), loss.loss.tolist()),
        accuracy=series(
            [event["position"] for event in evaluations],
            [event["top1"] / event["images"] for event in evaluations],
        ),
        lr=series([point.position for point in rates], [point.lr or 0.0 for point in rates]),
    )
