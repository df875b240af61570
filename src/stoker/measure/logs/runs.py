"""Other people's logs: the runs that a file holds, and their means.

A file may be one log or a page of notes with several. Lines that go on from each other are one
run; a line that starts again is another run; lines of several ranks, side by side, are one run of
several ranks. Means are taken from running means, weighted by steps, never from what a typical
line shows: a loader that cannot keep up but has a queue waits seldom and long, and most lines show
no wait at all. Memory is bounded, whatever the file.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import BinaryIO

from stoker.errors import BadRequest
from stoker.measure.logs.line import FORMATS, LogLine, Validation, batch_by_accuracy, parse
from stoker.measure.logs.lines import Headings, lines
from stoker.measure.logs.sums import RankLines, Sum

MOST_RUNS = 64
MOST_STREAMS = 512
FORGOTTEN_AFTER = 512
"""Lines of other ranks after which nothing goes on from a line any more."""
FEWEST_STEPS = 10
"""Steps beside the warm-up that make it worth leaving it out."""
MOST_BLUR = 0.05
"""Where rounding hides more of a step than this, the warm-up stays in."""


@dataclass(frozen=True)
class Block:
    """A run, as its log tells it. Sums are over all ranks."""

    format: str
    title: str
    lines: int
    ranks: int
    epochs: int
    steps: int
    """A rank's, from the first to the last line."""
    whole: Sum
    judged: Sum
    """The whole without the warm-up, where enough is left."""
    starts: Sum
    """First lines of the later epochs, within what is judged."""
    coverage: float
    """Share of the steps that the lines speak for."""
    images: float | None
    """Images a step, where the log betrays it."""
    waits: Counter[float]
    """Waits as the lines show them, and how many lines do."""
    stretches: tuple[Sum, ...]
    """What happened between lines; empty where ranks cannot be told apart."""
    validation_lines: int
    validations: int

    @property
    def warmup_steps(self) -> int:
        """Steps of a rank that are left out."""
        return (self.whole.steps - self.judged.steps) // self.ranks

    @property
    def typical_wait_s(self) -> float:
        """What the line in the middle shows."""
        seen, half = 0, (self.waits.total() + 1) // 2
        for wait_s, count in sorted(self.waits.items()):
            seen += count
            if seen >= half:
                return wait_s
        return 0.0

    def quiet_lines(self, under_s: float) -> int:
        return sum(count for wait_s, count in self.waits.items() if wait_s <= under_s)


@dataclass(frozen=True)
class Log:
    """All runs of a file, in its order."""

    blocks: tuple[Block, ...]
    cut: bool
    """More runs than are kept."""


@dataclass(eq=False)
class _Run:
    """A run while its lines come in."""

    title: str
    streams: list[RankLines] = field(default_factory=list)
    validation_lines: int = 0
    validations: int = 0

    def block(self) -> Block:
        for stream in self.streams:
            stream.finish()
        ranks, first = len(self.streams), self.streams[0]
        warmup, rest, starts = (
            reduce(Sum.__add__, sums)
            for sums in zip(*((s.warmup, s.rest, s.starts) for s in self.streams), strict=True)
        )
        enough = rest.steps >= FEWEST_STEPS * ranks and rest.blur <= MOST_BLUR
        whole = warmup + rest
        unseen = sum(stream.unseen for stream in self.streams)
        told_apart = ranks == 1 or all(stream.first.rank for stream in self.streams)
        lines_with_rate = sum(stream.images_lines for stream in self.streams)
        accuracies = set().union(*(stream.accuracies for stream in self.streams))
        return Block(
            format=first.first.format.name,
            title=self.title,
            lines=sum(stream.lines for stream in self.streams),
            ranks=ranks,
            epochs=max(stream.epochs for stream in self.streams),
            steps=(whole.steps + unseen) // ranks,
            whole=whole,
            judged=rest if enough else whole,
            starts=starts if enough else Sum(),
            coverage=whole.steps / max(whole.steps + unseen, 1),
            images=sum(stream.images for stream in self.streams) / lines_with_rate
            if lines_with_rate
            else batch_by_accuracy(accuracies),
            waits=sum((stream.waits for stream in self.streams), Counter[float]()),
            stretches=tuple(s for stream in self.streams for s in stream.stretches)
            if told_apart
            else (),
            validation_lines=self.validation_lines,
            validations=self.validations,
        )


@dataclass(eq=False)
class _Open:
    """A stream that lines may still go on from."""

    stream: RankLines
    run: _Run
    opened: int
    seen: int


class _Sorter:
    """Puts each line where it belongs."""

    def __init__(self) -> None:
        self.runs: list[_Run] = []
        self.cut = False
        self._open: list[_Open] = []
        """The latest last."""
        self._count = 0
        self._streams = 0
        self._before: LogLine | None = None
        self._validation: int | None = None

    def add(self, line: LogLine, title: str) -> bool:
        """True where the line begins a run."""
        self._count += 1
        self._validation = None
        self._open = [o for o in self._open if self._count - o.seen <= FORGOTTEN_AFTER]
        found = self._followed(line)
        if found is None:
            return self._begin(line, title)
        for other in self._open:
            # One that went on after another began ran beside it.
            if other.run is not found.run and other.opened > found.seen:
                self._unite(found.run, other.run)
        found.stream.add(line)
        found.seen = self._count
        self._open.remove(found)
        self._open.append(found)
        self._before = line
        return False

    def add_validation(self, line: Validation) -> None:
        if self._open:
            run = self._open[-1].run
            run.validation_lines += 1
            run.validations += self._validation is None or line.index < self._validation
        self._validation = line.index

    def close(self) -> None:
        """Quoted text begins or ends: nothing goes on from here."""
        self._open.clear()
        self.pause()

    def pause(self) -> None:
        """Something else than a log line came."""
        self._before = None

    def _followed(self, line: LogLine) -> _Open | None:
        """The stream that a line goes on from: rather in its rhythm, rather the latest."""
        mates = [
            o
            for o in reversed(self._open)
            if o.stream.first.format is line.format
            and o.stream.first.rank == line.rank
            and (o.stream.last.total == line.total or o.stream.last.epoch != line.epoch)
        ]
        ahead = [o for o in mates if _position(line) > _position(o.stream.last)]
        return next((o for o in ahead if _in_rhythm(o.stream, line)), next(iter(ahead), None))

    def _begin(self, line: LogLine, title: str) -> bool:
        beside = self._beside(line)
        if self._streams >= MOST_STREAMS or (beside is None and len(self.runs) >= MOST_RUNS):
            self.cut = True
            return False
        run = beside
        if run is None:
            run = _Run(title)
            self.runs.append(run)
        run.streams.append(RankLines(line))
        self._streams += 1
        self._open.append(_Open(run.streams[-1], run, self._count, self._count))
        self._before = line
        return True

    def _beside(self, line: LogLine) -> _Run | None:
        """The run of the line just above, where that is the same step of another rank."""
        before = self._before
        if before is None or not self._open or before.format is not line.format:
            return None
        same = (*_position(before), before.total) == (*_position(line), line.total)
        return self._open[-1].run if same else None

    def _unite(self, run: _Run, other: _Run) -> None:
        run.streams += other.streams
        run.validation_lines += other.validation_lines
        run.validations += other.validations
        self.runs.remove(other)
        for entry in self._open:
            if entry.run is other:
                entry.run = run


def _position(line: LogLine) -> tuple[int, int]:
    return line.epoch, line.index


def _in_rhythm(stream: RankLines, line: LogLine) -> bool:
    if line.epoch == stream.last.epoch:
        return stream.gap is None or line.index == stream.last.index + stream.gap
    return line.epoch == stream.last.epoch + 1 and line.index <= (stream.gap or line.index)


def read(file: BinaryIO) -> Log:
    """The runs in a stream of bytes."""
    sorter, headings = _Sorter(), Headings()
    for text in lines(file):
        line = parse(text)
        if isinstance(line, LogLine):
            if sorter.add(line, headings.title):
                headings.used()
        elif isinstance(line, Validation):
            sorter.add_validation(line)
        elif headings.pass_by(text):
            sorter.close()
        elif text.strip():
            sorter.pause()
    return Log(tuple(run.block() for run in sorter.runs), sorter.cut)


def read_log(path: Path) -> Log:
    """The runs in a file; refused, with the formats understood, where it holds none."""
    try:
        with path.open("rb") as file:
            log = read(file)
    except OSError as error:
        raise BadRequest(f"cannot read {path}: {error.strerror or error}") from error
    if not log.blocks:
        known = ", ".join(f"{form.name} ({form.example})" for form in FORMATS)
        raise BadRequest(f"{path} is not a run directory, nor a log that is understood: {known}")
    return log
