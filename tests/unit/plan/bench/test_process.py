"""How a cell's end becomes a row: figures of its ranks, or a reason."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench_results import CELL
from golden import check_golden
from stoker.plan.bench.measure import start_event
from stoker.plan.bench.process import CellLimits, failure, row_of_folder
from stoker.plan.bench.rows import BenchRow

LIMITS = CellLimits(50, 5, 60.0, 2.0)


def end(*codes: int | None, **facts: Any) -> dict[str, Any]:
    first = next((n for n, code in enumerate(codes) if code), None)
    return {
        "codes": list(codes),
        "first": first,
        "timed_out": False,
        "killed_by_kernel": False,
        **facts,
    }


def rank_figures(seconds: float = 1.0) -> dict[str, Any]:
    part = {"data": 0.2 * seconds, "forward": 0.5 * seconds, "backward": 0.3 * seconds}
    return {
        "outcome": "ok",
        "setup_s": 3.0,
        "first_step_s": 1.0,
        "warm_up_steps": 5,
        "warm_up_s": 2.0,
        "cached_before": 0.0,
        "cold": {"images": 64, "seconds": 2 * seconds},
        "repeats": [{"images": 64, "seconds": seconds}] * 5,
        "events": [
            {
                "kind": "attempt",
                "step": -1000,
                "world": 1,
                "environment": {"cores": 2, "threads": 1},
            },
            *({"kind": "step", "step": n, "batch": 64, "parts": part} for n in range(5)),
        ],
        "memory_bytes": 1000,
        "evaluation": {"images": 64, "seconds": seconds / 4},
        "flops_per_image": 1e9,
        "device": {"kind": "cpu", "name": "", "memory_bytes": 0},
        "state": {},
    }


def row_of(
    folder: Path, code: int, facts: Any, ranks: list[Any], log: str = "", count: int = 1
) -> BenchRow:
    from dataclasses import replace

    folder.mkdir()
    for name, value in {"end": facts, **{f"rank-{n}": one for n, one in enumerate(ranks)}}.items():
        if value is not None:
            (folder / f"{name}.json").write_text(json.dumps(value))
    (folder / "log.txt").write_text(log)
    return row_of_folder(folder, replace(CELL, ranks=count), code, LIMITS, 12.0)


def test_a_rank_names_its_machine() -> None:
    """A verdict on a slow rank once read: rank 1 on : it takes ..."""
    ranks: Any = SimpleNamespace(world=2, local_world=2)
    loaders: Any = SimpleNamespace(loader=SimpleNamespace(threads=1))
    assert start_event(ranks, loaders)["environment"]["host"] == socket.gethostname()


def test_figures_of_a_rank(tmp_path: Path) -> None:
    row = row_of(tmp_path / "a", 0, end(0), [rank_figures()])
    assert row.outcome == "ok" and row.figures is not None
    assert row.figures.rates == (64.0,) * 5
    assert row.figures.cold_images_per_s == 32.0
    assert row.figures.data_share == pytest.approx(0.2)
    assert row.figures.limit
    assert row.mfu is None


def test_a_pass_is_over_with_its_last_rank(tmp_path: Path) -> None:
    ranks = [rank_figures(1.0), rank_figures(2.0) | {"memory_bytes": 5000}]
    row = row_of(tmp_path / "a", 0, end(0, 0), ranks, count=2)
    assert row.figures is not None
    assert row.figures.rates == (32.0,) * 5
    assert row.figures.memory_bytes == 5000


ABORTED, KILLED = -signal.SIGABRT, -signal.SIGKILL
MEMORY = {"outcome": "out of memory", "reason": "a step of 64 images of 224 px"}
REFUSED = {"outcome": "refused", "reason": "the set has no images"}
CRASHED = {"outcome": "crashed", "reason": "ValueError: what\x1b[31m"}
ENDS: dict[str, tuple[int, Any, list[Any], str]] = {
    "out of memory": (1, end(1), [MEMORY], ""),
    "the kernel has no memory": (1, end(KILLED, killed_by_kernel=True), [None], ""),
    "killed by somebody": (1, end(KILLED), [None], ""),
    "aborted": (1, end(ABORTED), [None], "first\nlast words\n"),
    "aborted without memory": (1, end(ABORTED), [None], "what(): std::bad_alloc\n"),
    "an exception": (1, end(1), [CRASHED], "Traceback\n"),
    "refused": (1, end(2), [REFUSED], ""),
    "timed out": (1, end(None, timed_out=True), [None], ""),
    "the keeper was killed": (KILLED, None, [None], ""),
    "no end and no signal": (1, end(3), [None], ""),
}


def test_ends_golden(tmp_path: Path) -> None:
    lines = []
    for number, (name, (code, facts, ranks, log)) in enumerate(ENDS.items()):
        row = row_of(tmp_path / str(number), code, facts, ranks, log)
        assert row.figures is None
        lines += [f"{name}:", f"  {row.outcome}: {row.reason}"]
    check_golden("bench_ends", lines)


DEAD = (
    "ImportError: libarrow.so.2600: cannot map zero-fill pages",
    "ImportError: /x/torch/_C.so: failed to map segment from shared object",
    "cannot allocate memory for thread-local data: ABORT",
)
"""The last words of processes that a limit ended, whatever the program was doing."""
LIMITED = (
    "SystemError: error return without exception set",
    "RuntimeError: can't start new thread",
    "set/train/index.parquet is damaged (Unknown error: Failed to launch worker thread: Resource "
    "temporarily unavailable): remove the set, then pack it again",
)


@pytest.mark.parametrize("words", [*DEAD, *LIMITED])
@pytest.mark.parametrize("outcome", ["crashed", "refused", None])
@pytest.mark.parametrize("memory_gb", [0.8, 0.0])
def test_the_words_of_a_process_at_its_limit(
    tmp_path: Path, words: str, outcome: str | None, memory_gb: float
) -> None:
    code = 2 if outcome == "refused" else 1
    ranks = [{"outcome": outcome, "reason": words}] if outcome else [None]
    log = f"Traceback (most recent call last):\n{words}\n"
    found, reason = failure(end(code), ranks, log, code, CellLimits(50, 5, 60.0, memory_gb))
    if memory_gb or words in DEAD:
        assert found == "out of memory"
    else:
        assert found == (outcome or "crashed")
    assert words in reason or (outcome, found) == ("refused", "out of memory")
    assert "remove the set" not in reason or found == "refused" or outcome != "refused"
    assert ("(--memory-limit 0.8 GB)" in reason) == bool(memory_gb)


def test_a_disk_that_refuses_programs_is_no_lack_of_memory(tmp_path: Path) -> None:
    log = (
        "ImportError: /tmp/x.so: failed to map segment from shared object: Operation not permitted"
    )
    assert failure(end(1), [None], log, 1, LIMITS)[0] == "crashed"


def test_the_rank_without_memory_is_named_beside_one_that_noticed(tmp_path: Path) -> None:
    row = row_of(tmp_path / "a", 1, end(1, 1), [CRASHED, MEMORY], count=2)
    assert row.outcome == "out of memory"
