"""`--profile` with several ranks, and killed while the trace is written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from chaos.recipes import command
from chaos.trainers import Trainers
from stoker.run.directory import Run

RECIPE = "raw, adamw, ema, one-cycle"
pytestmark = pytest.mark.exact


def test_a_kill_leaves_no_trace_and_the_next_attempt_writes_its_own(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path
) -> None:
    run, log = Run(tmp_path / "run"), tmp_path / "log"
    argv = command(packed_sets, run.path, RECIPE, epochs=4, more="--profile 1..4")
    kill = {"fault": "kill", "at": "trace-rank0.json.gz:written", "rank": 0}
    assert trainers.train(argv, log, ranks=2, faults=[kill])[0] == -9
    assert not list(run.attempt_path(1).glob("trace*"))
    assert trainers.train(argv, log, ranks=2) == [0, 0]
    assert run.finished
    begin = run.starts()[-1]["step"]
    traces = sorted(path.name for path in run.attempt_path(2).glob("trace*"))
    assert traces == (["trace-rank0.json.gz"] if begin <= 4 else [])
    if traces:
        data = json.loads(gzip.decompress((run.attempt_path(2) / traces[0]).read_bytes()))
        names = {event["name"] for event in data["traceEvents"]}
        assert {f"step {step}" for step in range(max(begin, 1), 5)} <= names
    assert "profiler_start" not in log.read_text(), "the profiler logs by itself"
