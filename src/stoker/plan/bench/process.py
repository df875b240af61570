"""One cell in processes of its own: whatever happens to them, the cell is a row.

Invariants: a cell that runs out of memory, crashes, is killed, hangs or is refused costs this
process nothing. When `run_cell` returns or raises, no process of the cell is left. Nothing is kept
of a cell but its row.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from stoker.commit import write_json
from stoker.errors import FINISHED, BadRequest
from stoker.fleet.launcher import private_folder
from stoker.host.out_of_memory import log_says_so
from stoker.host.signals import await_signals, end_with_parent
from stoker.measure.facts import Facts
from stoker.measure.facts_from_events import AttemptSums
from stoker.measure.spans import WAITING
from stoker.measure.verdict import verdict_of
from stoker.plan.bench.cells import BenchCell
from stoker.plan.bench.keeper import END, JOB, LOG
from stoker.plan.bench.rows import (
    CRASHED,
    NO_MEMORY,
    OK,
    REFUSED,
    TIMED_OUT,
    BenchRow,
    Figures,
    failed_row,
)
from stoker.plan.bench.utilisation import peak_flops
from stoker.recipe.model_file import ModelCode, function_of
from stoker.recipe.recipe import Recipe
from stoker.text import clock, one_line, printable

END_S = 10.0
"""How long the keeper may take to end its ranks, before it is killed and they with it."""
LOG_BYTES = 20_000
"""The end of standard error that is read."""
GB = 10**9


@dataclass(frozen=True)
class CellLimits:
    """How a cell is measured."""

    steps: int
    repeats: int
    time_limit_s: float
    memory_gb: float
    """Most memory of each process, or of each GPU; 0: no limit."""

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gb * GB)


def run_cell(
    data: Path, cell: BenchCell, base: Recipe, code: ModelCode | None, limits: CellLimits
) -> BenchRow:
    """Measure one cell; returns its row, whatever the outcome. `base` is the recipe of its model.
    Raises BadRequest where no process can be started, and what a stop request raises."""
    folder = private_folder("stoker-bench-")
    began = time.monotonic()
    try:
        write_json(folder / JOB, job_data(data, cell, base, code, limits))
        code_of_keeper = run_keeper(folder)
        if not (folder / END).exists():
            await_signals()
        seconds = time.monotonic() - began
        return row_of_folder(folder, cell, code_of_keeper, limits, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def job_data(
    data: Path, cell: BenchCell, base: Recipe, code: ModelCode | None, limits: CellLimits
) -> dict[str, Any]:
    """What the processes of a cell read."""
    text = None
    if code is not None:
        function = function_of(cell.model)
        text = {"path": str(code.path), "function": function, "text": code.text}
    return {
        "data": str(data.absolute()),
        "recipe": cell.recipe(base).values(),
        "ranks": cell.ranks,
        "steps": limits.steps,
        "repeats": limits.repeats,
        "time_limit_s": limits.time_limit_s,
        "memory_bytes": limits.memory_bytes,
        "code": text,
    }


def run_keeper(folder: Path) -> int:
    """Run the process that keeps the cell, to its end; returns its exit code."""
    try:
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "stoker", "bench", "cell", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
    except OSError as error:
        raise BadRequest(
            f"no process can be started for a cell ({error.strerror}): end other processes first"
        ) from error
    try:
        return keeper.wait()
    finally:
        if keeper.poll() is None:
            keeper.terminate()
            with suppress(subprocess.TimeoutExpired):
                keeper.wait(END_S)
            keeper.kill()
            keeper.wait()


def row_of_folder(
    folder: Path, cell: BenchCell, code: int, limits: CellLimits, seconds: float
) -> BenchRow:
    """The row of a cell that has ended."""
    measured_at = datetime.now(UTC).isoformat(timespec="seconds")
    end = read_json(folder / END)
    ranks = [read_json(folder / f"rank-{rank}.json") for rank in range(cell.ranks)]
    if code == FINISHED and end and all(rank and rank["outcome"] == OK for rank in ranks):
        return BenchRow(
            cell=cell,
            outcome=OK,
            reason="",
            seconds=seconds,
            measured_at=measured_at,
            figures=combined([rank for rank in ranks if rank], cell),
        )
    outcome, reason = failure(end, ranks, log_end(folder / LOG), code, limits)
    return failed_row(cell, outcome, printable(reason), seconds, measured_at)


def failure(
    end: Mapping[str, Any] | None,
    ranks: list[dict[str, Any] | None],
    log: str,
    code: int,
    limits: CellLimits,
) -> tuple[str, str]:
    """The outcome of a cell without figures, and the reason in one line."""
    says_so = partial(log_says_so, limited=limits.memory_gb > 0)
    for outcome in (NO_MEMORY, REFUSED):
        for rank in (rank for rank in ranks if rank):
            if outcome == rank["outcome"] or (outcome == NO_MEMORY and says_so(rank["reason"])):
                if outcome == REFUSED:
                    return outcome, rank["reason"]
                advises = rank["outcome"] == REFUSED  # of what it took for the cause
                reason = "libraries and threads need more" if advises else rank["reason"]
                return outcome, f"{reason}{limit_note(limits)}"
    last = last_line(log)
    if end is None:
        return CRASHED, f"the process that kept this cell {ending(code)} {last}".strip()
    if end["timed_out"]:
        limit = clock(limits.time_limit_s)
        return TIMED_OUT, f"no end after {limit}: raise --time-limit, or lower --steps"
    number, blamed = end["first"], end["codes"]
    blamed_code = blamed[number] if number is not None else next(filter(None, blamed), 1)
    name = f"rank {number or 0}"
    if blamed_code == -signal.SIGKILL and end["killed_by_kernel"]:
        return NO_MEMORY, f"the kernel killed {name}: no memory was left"
    if says_so(log):
        return NO_MEMORY, f"{name}: {last}{limit_note(limits)}"
    reason = next((rank["reason"] for rank in ranks if rank and rank["outcome"] == CRASHED), last)
    words = f": {reason}" if reason else ""  # a limit ends some processes without a word
    return CRASHED, f"{name} {ending(blamed_code)}{words}{limit_note(limits)}"


def limit_note(limits: CellLimits) -> str:
    """How much memory a process was allowed, where that was limited."""
    return f" (--memory-limit {limits.memory_gb:g} GB)" if limits.memory_gb else ""


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"


def log_end(path: Path) -> str:
    """The last part of what the ranks wrote to standard error."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(path.stat().st_size - LOG_BYTES, 0))
        return file.read().decode(errors="replace")
    return ""


def last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return one_line(lines[-1].removeprefix("stoker: ")) if lines else ""


def read_json(path: Path) -> dict[str, Any] | None:
    """A file of the cell's private folder; None where a process did not get to write it."""
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value


def combined(ranks: list[dict[str, Any]], cell: BenchCell) -> Figures:
    """The figures of all ranks as one. A pass is over when its last rank is."""
    first = ranks[0]
    facts = facts_of(ranks)
    verdict = verdict_of(facts)
    device, evaluations = first["device"], [rank["evaluation"] for rank in ranks]
    return Figures(
        rates=tuple(
            rate([rank["repeats"][n] for rank in ranks]) for n in range(len(first["repeats"]))
        ),
        cold_images_per_s=rate([rank["cold"] for rank in ranks]),
        cached_before=first["cached_before"],
        setup_s=max(rank["setup_s"] for rank in ranks),
        first_step_s=max(rank["first_step_s"] for rank in ranks),
        warm_up_steps=first["warm_up_steps"],
        warm_up_s=max(rank["warm_up_s"] for rank in ranks),
        data_share=waiting_share(facts),
        limit=verdict.limit if verdict else "",
        verdict=verdict.lines()[0] if verdict else "",
        memory_bytes=max(rank["memory_bytes"] for rank in ranks),
        flops_per_image=first["flops_per_image"],
        peak_flops=peak_flops(device["name"], device["memory_bytes"], cell.precision),
        device=device,
        state=first["state"],
        evaluation_images_per_s=rate(evaluations) if all(evaluations) else None,
    )


def rate(passes: list[dict[str, float]]) -> float:
    return passes[0]["images"] / max(max(one["seconds"] for one in passes), 1e-9)


def facts_of(ranks: list[dict[str, Any]]) -> Facts | None:
    """How the time of the repeats was spent, as it would follow from the events of a run."""
    sums = AttemptSums()
    for number, rank in enumerate(ranks):
        for event in rank["events"]:
            sums.add(number, event)
    return sums.facts()


def waiting_share(facts: Facts | None) -> float:
    if facts is None or facts.step_s <= 0:
        return 0.0
    return min(facts.part(*WAITING) / facts.step_s, 1.0)
