"""A Chrome trace of some steps: `stoker train --profile 100..110`.

Invariants: a trace appears under its name complete or not at all, and one that cannot be written
ends no run. Profiling changes no bits. Starting the profiler and writing the trace count as
`measuring`, which is part of no step.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from stoker.commit import publish, temporary
from stoker.faults import reach
from stoker.measure.clocks import Clock
from stoker.measure.spans import Lap, Spans
from stoker.text import plural

NAME = "trace-rank0.json.gz"
SILENT = "99"
"""A log level at which the profiler writes nothing to standard error."""
VIEWERS = "https://ui.perfetto.dev or chrome://tracing"


class ProfiledSpans(Spans):
    """Spans that are also ranges of a trace, in the chosen steps; each step is a range as well."""

    def __init__(
        self,
        clock: Clock,
        steps: range,
        next_step: Callable[[], int],
        device: torch.device,
        write: Callable[[profile, range], None],
    ) -> None:
        super().__init__(clock)
        os.environ.setdefault("KINETO_LOG_LEVEL", SILENT)
        self._steps, self._next_step, self._write = steps, next_step, write
        self._activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            self._activities.append(ProfilerActivity.CUDA)
        self._profiler: profile | None = None
        self._ranges: list[record_function] = []
        """The open step, and in it the open spans."""
        self._first = self._last = -1
        """The first recorded step, and the one that begins now."""

    def _enter(self, name: str) -> None:
        super()._enter(name)
        if self._profiler:
            self._begin(name)

    def _leave(self) -> None:
        if self._profiler and self._ranges:
            self._ranges.pop().__exit__(None, None, None)
        super()._leave()

    def _begin(self, name: str) -> None:
        self._ranges.append(record_function(name))
        self._ranges[-1].__enter__()  # type: ignore[no-untyped-call]

    def lap(self, shares: Mapping[str, Mapping[str, float]] | None = None) -> Lap:
        """As `Spans.lap`, which is called after each step, before the first, and at the end."""
        lap, step = super().lap(shares), self._next_step()
        while self._ranges:
            self._ranges.pop().__exit__(None, None, None)
        ended = self._profiler is not None and step == self._last
        if self._profiler and (ended or step not in self._steps):
            profiler, self._profiler = self._profiler, None
            with self("measuring"):
                profiler.stop()
                self._write(profiler, range(self._first, step))
        elif step in self._steps and step != self._last:
            if self._profiler is None:
                with self("measuring"):
                    profiler = profile(activities=self._activities)
                    profiler.start()
                self._profiler, self._first = profiler, step
            self._begin(f"step {step}")
        self._last = step
        return lap


def trace_writer(path: Path, note: Callable[[str], None]) -> Callable[[profile, range], None]:
    """A function that writes the trace of some steps, and a note about where it is."""

    def write(profiler: profile, steps: range) -> None:
        if not steps:
            return
        numbers = f"{plural(len(steps), 'step')} from step {steps.start} on"
        try:
            write_trace(profiler, path)
            note(f"the trace of {numbers} is {path}: open it with {VIEWERS}")
        except OSError as error:
            note(f"the trace of {numbers} could not be written: {error}; training goes on")

    return write


def write_trace(profiler: profile, path: Path) -> None:
    """Write a trace, compressed. Raises OSError where that fails; nothing is left then."""
    plain, draft = temporary(path.with_suffix("")), temporary(path)
    try:
        profiler.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(draft, "wb", compresslevel=1) as target:
            source.seek(-min(64, plain.stat().st_size), os.SEEK_END)
            if not source.read().rstrip().endswith(b"}"):  # the profiler reports no full disk
                raise OSError(f"{plain.name} is incomplete: check the free disk space")
            source.seek(0)
            shutil.copyfileobj(source, target, 1 << 20)
        reach(f"{path.name}:written")
        publish(draft, path)
    finally:
        plain.unlink(missing_ok=True)
        draft.unlink(missing_ok=True)


def profile_note(steps: range | None, begin: int, end: int) -> Iterator[str]:
    """What of the chosen steps this attempt, which makes those from `begin` to `end`, lacks."""
    if steps is None:
        return
    made = range(max(steps.start, begin), min(steps.stop, end))
    chosen, attempt = f"--profile {steps.start}..{steps.stop - 1}", f"steps {begin} to {end - 1}"
    if not made:
        yield f"{chosen} writes no trace: this attempt makes {attempt}"
    elif made != steps:
        yield f"{chosen} records {plural(len(made), 'step')}: this attempt makes {attempt}"
