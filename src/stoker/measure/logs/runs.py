"""The runs in a file of training logs of other programs, and their means.

A file may be one log or a page of notes with several. Lines that continue each other are one run; a
line that starts over begins another; lines of ranks, side by side, are one run. Means are taken
from running means, weighted by steps, never from what a typical line shows: a loader that cannot
keep up but has a queue waits seldom and long, and most lines show none. Memory is bounded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import IO

from stoker.errors import BadRequest
from stoker.host.plain_file import NotPlain, open_given
from stoker.measure.logs.line import FORMATS, LogLine, Validation, batch_by_accuracy, parse
from stoker.measure.logs.lines import Headings, lines
from stoker.measure.logs.sums import RankLines, Sum

MOST_RUNS = 64
MOST_RANKS = 512
FORGOTTEN_AFTER = 512
"""Lines after which a rank that has written none of them is closed."""
FEWEST_STEPS = 10
"""The least steps after the warm-up with which the warm-up is left out."""
MOST_BLUR = 0.05
"""If rounding hides more than this share of a step, the warm-up is not left out."""


@dataclass(frozen=True)
class LoggedRun:
    """What the log says about one run. Sums are over all ranks."""

    format: str
    title: str
    lines: int
    ranks: int
    epochs: int
    steps: int
    """Steps of a rank, from the first to the last line."""
    whole: Sum
    counted: Sum
    """The steps that a verdict is about: without the warm-up, where enough are left."""
    starts: Sum
    """What the first lines of the later epochs cover, within the counted steps."""
    coverage: float
    """The share of the steps that the lines cover."""
    images: float | None
    """Images of a step; None where the log does not tell."""
    waits: Counter[float]
    """How many lines show each wait."""
    stretches: tuple[Sum, ...]
    """Sums between lines; empty where the ranks of the lines are unknown."""
    validation_lines: int
    validations: int

    @property
    def warmup_steps(self) -> int:
        """Steps of a rank that are left out as warm-up."""
        return (self.whole.steps - self.counted.steps) // self.ranks

    @property
    def typical_wait_s(self) -> float:
        """The (lower) median of the waits that the lines show."""
        passed, half = 0, (self.waits.total() + 1) // 2
        for wait_s, count in sorted(self.waits.items()):
            passed += count
            if passed >= half:
                return wait_s
        return 0.0


@dataclass(frozen=True)
class Log:
    """All runs of a file, in its order."""

    runs: tuple[LoggedRun, ...]
    cut: bool
    """Whether the file holds more runs or ranks than are kept."""


@dataclass(eq=False)
class _RunLines:
    """The lines of one run, while the file is read."""

    title: str
    ranks: list[RankLines] = field(default_factory=list)
    validation_lines: int = 0
    validations: int = 0

    def finish(self) -> LoggedRun:
        for rank in self.ranks:
            rank.finish()
        count, first = len(self.ranks), self.ranks[0].first
        warmup, rest, starts = (
            reduce(Sum.__add__, sums)
            for sums in zip(*((r.warmup, r.rest, r.starts) for r in self.ranks), strict=True)
        )
        enough = rest.steps >= FEWEST_STEPS * count and rest.blur <= MOST_BLUR
        whole = warmup + rest
        uncovered = sum(rank.uncovered for rank in self.ranks)
        known_ranks = count == 1 or all(rank.first.rank for rank in self.ranks)
        return LoggedRun(
            format=first.format.name,
            title=self.title,
            lines=sum(rank.lines for rank in self.ranks),
            ranks=count,
            epochs=max(rank.epochs for rank in self.ranks),
            steps=(whole.steps + uncovered) // count,
            whole=whole,
            counted=rest if enough else whole,
            starts=starts if enough else Sum(),
            coverage=whole.steps / max(whole.steps + uncovered, 1),
            images=self._images(),
            waits=sum((rank.waits for rank in self.ranks), Counter[float]()),
            stretches=tuple(s for r in self.ranks for s in r.stretches) if known_ranks else (),
            validation_lines=self.validation_lines,
            validations=self.validations,
        )

    def _images(self) -> float | None:
        """Images of a step: from the rates, else from the accuracies, else None."""
        if lines_with_rate := sum(rank.images_lines for rank in self.ranks):
            return sum(rank.images for rank in self.ranks) / lines_with_rate
        return batch_by_accuracy(set().union(*(rank.accuracies for rank in self.ranks)))


@dataclass(eq=False)
class _OpenRank:
    """A rank whose lines may continue."""

    lines: RankLines
    run: _RunLines
    opened: int
    """The number of its first line, and of its latest."""
    latest: int


class _Sorter:
    """Assigns each line to its run and rank."""

    def __init__(self) -> None:
        self.runs: list[_RunLines] = []
        self.cut = False
        self._open: list[_OpenRank] = []
        """By their latest lines."""
        self._count = self._ranks = 0
        self._line_above: LogLine | None = None
        self._validation: int | None = None

    def add(self, line: LogLine, title: str) -> bool:
        """Assign a line; True where it begins a run or a rank."""
        self._count += 1
        self._validation = None
        self._open = [o for o in self._open if self._count - o.latest <= FORGOTTEN_AFTER]
        rank = self._continued(line)
        if rank is None:
            return self._begin(line, title)
        for other in self._open:
            # A rank that continues after another has begun ran beside it.
            if other.run is not rank.run and other.opened > rank.latest:
                self._unite(rank.run, other.run)
        rank.lines.add(line)
        rank.latest = self._count
        self._open.remove(rank)
        self._open.append(rank)
        self._line_above = line
        return False

    def add_validation(self, line: Validation) -> None:
        if self._open:
            run = self._open[-1].run
            run.validation_lines += 1
            run.validations += self._validation is None or line.index < self._validation
        self._validation = line.index

    def close(self) -> None:
        """Quoted text begins or ends: no line continues across it."""
        self._open.clear()
        self.interrupt()

    def interrupt(self) -> None:
        """A line that is no log line: the next line is not beside the one above."""
        self._line_above = None

    def _continued(self, line: LogLine) -> _OpenRank | None:
        """The rank that a line continues: preferably at its interval, preferably the latest."""
        candidates = [
            o
            for o in reversed(self._open)
            if o.lines.first.format is line.format
            and o.lines.first.rank == line.rank
            and (o.lines.last.total == line.total or o.lines.last.epoch != line.epoch)
            and _position(line) > _position(o.lines.last)
        ]
        at_interval = (o for o in candidates if _is_at_interval(o.lines, line))
        return next(at_interval, next(iter(candidates), None))

    def _begin(self, line: LogLine, title: str) -> bool:
        run = self._run_beside(line)
        if self._ranks >= MOST_RANKS or (run is None and len(self.runs) >= MOST_RUNS):
            self.cut = True
            return False
        if run is None:
            run = _RunLines(title)
            self.runs.append(run)
        run.ranks.append(RankLines(line))
        self._ranks += 1
        self._open.append(_OpenRank(run.ranks[-1], run, self._count, self._count))
        self._line_above = line
        return True

    def _run_beside(self, line: LogLine) -> _RunLines | None:
        """The run of the line above, where that is the same step of another rank."""
        above = self._line_above
        if above is None or not self._open or above.format is not line.format:
            return None
        same = (*_position(above), above.total) == (*_position(line), line.total)
        return self._open[-1].run if same else None

    def _unite(self, run: _RunLines, other: _RunLines) -> None:
        run.ranks += other.ranks
        run.validation_lines += other.validation_lines
        run.validations += other.validations
        self.runs.remove(other)
        for rank in self._open:
            if rank.run is other:
                rank.run = run


def _position(line: LogLine) -> tuple[int, int]:
    return line.epoch, line.index


def _is_at_interval(rank: RankLines, line: LogLine) -> bool:
    """Whether a line comes as many steps after the last one as the lines before it."""
    if line.epoch == rank.last.epoch:
        return rank.gap is None or line.index == rank.last.index + rank.gap
    return line.epoch == rank.last.epoch + 1 and line.index <= (rank.gap or line.index)


def read(file: IO[bytes], start: bytes = b"") -> Log:
    sorter, headings = _Sorter(), Headings()
    for text in lines(file, start):
        line = parse(text)
        if isinstance(line, LogLine):
            if sorter.add(line, headings.title):
                headings.used()
        elif isinstance(line, Validation):
            sorter.add_validation(line)
        elif headings.add(text):
            sorter.close()
        elif text.strip():
            sorter.interrupt()
    return Log(tuple(run.finish() for run in sorter.runs), sorter.cut)


def read_log(path: Path) -> Log:
    """The runs in a file; BadRequest, with the known formats, where it holds none."""
    try:
        with open_given(path) as (start, file):
            log = read(file, start)
    except (OSError, NotPlain) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadRequest(f"cannot read {path}: {reason}") from error
    if not log.runs:
        known = ", ".join(f"{form.name} ({form.example})" for form in FORMATS)
        raise BadRequest(
            f"{path} is not a run directory, nor a training log in a known format; "
            f"known formats: {known}"
        )
    return log
