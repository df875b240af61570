"""The curves of one attempt as points: named values of a step, in the order of the steps.

Invariants: within a stream the steps increase, so each metric has one value for a step. Nothing is
gathered: a point is given as soon as all ranks have written its steps, and what was given is
forgotten. A rank that stays silent delays the others for WAIT_S at most. Names of metrics consist
of letters, digits and `_ . - /`, whatever the events say.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from stoker.history.closed_rows import ClosedRowReader
from stoker.history.curves import point_of
from stoker.history.usage import usage_of
from stoker.measure.spans import APART
from stoker.run.directory import Run
from stoker.run.kinds import Event
from stoker.run.listing import dollars_until
from stoker.run.rows import NEVER, time_of

TRAIN, EVAL, MACHINE = "train", "eval", "machine"
"""Streams. That of another machine than rank 0's is `machine.N`, where N is its first rank."""
WAIT_S = 30.0
"""Seconds for which a row of rank 0 waits for the other ranks."""
MOST_RANKS, MOST_MACHINES, MOST_PARTS, LONGEST_NAME = 4096, 64, 40, 60
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_USAGE = {
    "busy": "cpu_busy",
    "cores": "cores_used",
    "steal": "cpu_steal",
    "read_s": "disk_read_bytes_per_s",
    "write_s": "disk_write_bytes_per_s",
    "received_s": "received_bytes_per_s",
    "sent_s": "sent_bytes_per_s",
    "memory_bytes": "memory_bytes",
    "available_bytes": "memory_available_bytes",
}
_GPU = {
    "busy": "busy",
    "used_bytes": "memory_bytes",
    "power_w": "power_w",
    "temperature_c": "temperature_c",
}


@dataclass(frozen=True)
class MetricPoint:
    """The values of one stream at a step."""

    stream: str
    step: int
    """Steps that were made up to here."""
    time: float
    """When they were written, in seconds since 1970."""
    values: Mapping[str, float]


def safe_name(text: str) -> str:
    """Text from a file as part of a metric's name."""
    return _UNSAFE.sub("_", text)[:LONGEST_NAME] or "_"


@dataclass
class _Rank:
    """What was read of one rank, and not used yet."""

    reader: ClosedRowReader
    rows: Iterator[Event] | None = None
    look: int = 0
    """The look in which all was read that there was."""
    next: Event | None = None
    is_done: bool = False
    """Whether it came to the steps that a later attempt repeated."""
    stream: str = ""
    """Of its machine, if it is the first rank there."""
    last: int = -1
    """The last step that was used."""


@dataclass
class _Sums:
    images: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0] * 3)

    def take(self, row: Event) -> None:
        self.images += row["images"]
        self.sums = [one + other for one, other in zip(self.sums, row["sums"], strict=True)]


class AttemptMetrics:
    """The points of one attempt up to the position from which on a later one repeated its steps.
    With `every_step` there is a point for each step, otherwise for about ten seconds."""

    def __init__(
        self,
        run: Run,
        attempt: int,
        cut: int = NEVER,
        *,
        every_step: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._attempt, self._cut = run, attempt, cut
        self._every_step, self._clock = every_step, clock
        self._ranks: dict[int, _Rank] = {}
        self._start: Event | None = None
        self._sums = _Sums()
        self._held_since: float | None = None
        self._look, self._is_over = 0, False
        self._probes: list[MetricPoint] = []
        self._steps: dict[str, int] = {}
        self._step = 0

    def read(self, *, is_over: bool = False) -> Iterator[MetricPoint]:
        """The points that are new. Where the attempt `is_over`, these are all that are left. Use
        them up before the next read."""
        self._look, self._is_over = self._look + 1, is_over
        for number in self._run.ranks(self._attempt):
            if number not in self._ranks:
                path = self._run.events_path(self._attempt, number)
                reader = ClosedRowReader(path, self._run.damage, every_step=self._every_step)
                self._ranks[number] = _Rank(reader)
        first = self._ranks.get(0)
        while first and (row := self._peek(first)):
            if row["kind"] == "steps" and self._is_waiting(row):
                return
            first.next = None
            for point in self._points_of(first, row):
                if point.step > self._steps.get(point.stream, -1):
                    self._steps[point.stream] = point.step
                    yield point

    def _peek(self, rank: _Rank) -> Event | None:
        """The next row of a rank, which stays its `next`; None where there is none yet."""
        while rank.next is None and not rank.is_done:
            if rank.rows is None:
                if rank.look == self._look:
                    return None
                rank.look = self._look
                rank.rows = rank.reader.read_closed(self._cut, is_over=self._is_over)
            rank.next = next(rank.rows, None)
            if rank.next is None:
                rank.rows = None
            elif rank.next["kind"] == "steps" and rank.next["position"] >= self._cut:
                rank.is_done, rank.next, rank.rows = True, None, None
        return rank.next

    def _is_waiting(self, row: Event) -> bool:
        """Take the rows of the other ranks up to a row of rank 0. Returns whether that row must
        wait for one of them."""
        others = [rank for number, rank in self._ranks.items() if number]
        for rank in others:
            self._take_until(rank, row["last"])
        missing = min(self._start["world"] if self._start else 1, MOST_RANKS) - len(self._ranks)
        is_behind = any(
            rank.last < row["last"] and rank.next is None and not rank.is_done for rank in others
        )
        if self._is_over or not (is_behind or missing > 0):
            self._held_since = None
            return False
        if self._held_since is None:
            self._held_since = self._clock()
        return self._clock() - self._held_since < WAIT_S

    def _take_until(self, rank: _Rank, last: int) -> None:
        """Take the rows of a rank whose last step is this one or an earlier one."""
        while row := self._peek(rank):
            if row["kind"] == "steps":
                if row["last"] > last:
                    return
                self._sums.take(row)
                rank.last = row["last"]
            elif row["kind"] in ("machine", "attempt"):
                self._take_machine(rank, row)
            elif row["kind"] == "probes" and rank.stream:
                self._probes.append(_probe_point(rank.stream, row))
            rank.next = None

    def _take_machine(self, rank: _Rank, row: Event) -> None:
        """Note which machine a rank describes: the first rank of a machine does."""
        number = next(number for number, one in self._ranks.items() if one is rank)
        if number and row.get("local_rank", number % row["local_world"]) == 0:
            machines = {one.stream for one in self._ranks.values() if one.stream}
            if len(machines) < MOST_MACHINES:
                rank.stream = f"{MACHINE}.{number}"

    def _points_of(self, first: _Rank, row: Event) -> Iterator[MetricPoint]:
        """What an event of rank 0 says, and the probes of other machines up to there."""
        kind = row["kind"]
        if kind == "attempt":
            self._start = self._start or row
            self._step = max(self._step, row["step"])
        elif kind == "steps":
            self._sums.take(row)
            sums, self._sums = self._sums, _Sums()
            self._step = row["last"] + 1
            yield self._train_point(row, sums)
        elif kind == "evaluation" and row["position"] <= self._cut:
            yield _evaluation_point(row, row.get("step", self._step))
        elif kind == "probes":
            yield _probe_point(MACHINE, row)
        probes, self._probes = self._probes, []
        yield from probes

    def _train_point(self, row: Event, sums: _Sums) -> MetricPoint:
        point = point_of(row, self._attempt, 0.0)
        values = {"train/epoch": point.epoch}
        if sums.images:
            names = ("train/loss", "train/top1", "train/top5")
            values |= {n: s / sums.images for n, s in zip(names, sums.sums, strict=True)}
        known = {
            "train/lr": point.lr,
            "train/grad_norm": point.norm,
            "train/images_per_s": point.images_per_s,
            "train/step_s": point.step_s,
            "cost/dollars": self._dollars(point.time),
        }
        values |= {name: value for name, value in known.items() if value is not None}
        parts = [part for part in point.parts if part not in APART][:MOST_PARTS]
        values |= {f"step/{safe_name(part)}": point.parts[part] / point.count for part in parts}
        return MetricPoint(TRAIN, point.step, point.time, values)

    def _dollars(self, at: float) -> float | None:
        """What the run had cost then; None where no price is known."""
        return dollars_until(self._start, at) if at else None


def _evaluation_point(row: Event, step: int) -> MetricPoint:
    values = {f"eval/{name}": row[name] / row["images"] for name in ("top1", "top5")}
    if "loss" in row:
        values["eval/loss"] = float(row["loss"])
    return MetricPoint(EVAL, step, time_of(row), values)


def _probe_point(stream: str, row: Event) -> MetricPoint:
    usage = usage_of(row)
    named = {name: getattr(usage, field) for field, name in _USAGE.items()}
    for number, gpu in sorted(usage.gpus.items())[:MOST_MACHINES]:
        place = "gpu" if len(usage.gpus) == 1 else f"gpu{number}"
        named |= {f"{place}_{name}": gpu.get(field) for field, name in _GPU.items()}
    values = {f"{stream}/{name}": value for name, value in named.items() if value is not None}
    return MetricPoint(stream, usage.step, usage.time, values)
