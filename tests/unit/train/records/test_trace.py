"""The trace of some steps: what is in it, and that it changes nothing else."""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from bits import same
from golden import check_golden
from samples import image_folder
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.measure.clocks import HostClock
from stoker.recipe.resolve import Resolved, resolve
from stoker.run.directory import Run
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.stopping import StopRequest
from stoker.train.attempt.end import FINISHED, INTERRUPTED
from stoker.train.attempt.inputs import AttemptOptions
from stoker.train.attempt.session import train
from stoker.train.records import trace
from stoker.train.records.trace import NAME, ProfiledSpans, profile_note, trace_writer
from tiny_runs import one_thread_alone  # noqa: F401

STEPS = 8
SPANS = ("data", "to_device", "forward", "backward", "optimiser")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    photos = image_folder(root / "photos", size=(8, 8), suffix="png", images=22)
    return pack(photos, root / "set", storage=Storage(codec="raw"), val_share=0, workers=1)


def recipe() -> Resolved:
    flags: dict[str, Any] = {"model": "resnet9_w2", "epochs": 2, "batch_size": 16, "image_size": 8}
    flags |= {"crop": "pad", "crop_pad": 1, "threads": 1, "rehearse": False, "ema": True}
    return resolve(flags=flags)


def run_with(data: Path, path: Path, steps: range | None, stop: StopRequest | None = None) -> str:
    return train(data, recipe(), path, stop=stop, options=AttemptOptions(profile=steps))


def ranges(path: Path) -> Counter[str]:
    """How often each named range is in the trace of an attempt."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return Counter(e["name"] for e in events if e.get("cat") == "user_annotation")


def trace_of(run: Path, attempt: int = 1) -> Path:
    return Run(run).attempt_path(attempt) / NAME


def notes(run: Path) -> list[str]:
    events = Run(run).events()
    words = [event["words"] for event in events if event["kind"] == "note"]
    return [*words, *(note for event in Run(run).starts() for note in event["warnings"])]


@pytest.fixture(scope="module")
def plain(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "run"
    assert run_with(data, path, None) == FINISHED
    return path


@pytest.mark.exact
def test_the_chosen_steps_are_in_the_trace_and_the_bits_are_the_same(
    data: Path, plain: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert run_with(data, run, range(3, 6)) == FINISHED
    counts = ranges(trace_of(run))
    assert {name: n for name, n in counts.items() if name.startswith("step ")} == {
        "step 3": 1,
        "step 4": 1,
        "step 5": 1,
    }
    assert {name: counts[name] for name in SPANS} == dict.fromkeys(SPANS, 3)
    assert any(str(trace_of(run)) in note and "perfetto" in note for note in notes(run))
    assert [p.name for p in trace_of(run).parent.iterdir() if p.name.startswith(".")] == []
    ours, theirs = (Checkpoints(path).newest()[0] for path in (run, plain))
    assert ours is not None and theirs is not None
    for what in ("weights", "ema", "state"):
        assert same(getattr(ours, what), getattr(theirs, what)), what
    losses = [[e["sums"] for e in Run(path).merged("step")] for path in (run, plain)]
    assert losses[0] == losses[1] and len(losses[0]) == STEPS
    assert Run(run).record["digest"] == Run(plain).record["digest"]
    assert not trace_of(plain).exists()
    # The profiler's own log is silenced before its first use, which may have been another test's.
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "ActivityProfiler" not in line] == []


def test_the_time_of_profiling_is_part_of_no_step(data: Path, tmp_path: Path) -> None:
    assert run_with(data, tmp_path / "run", range(2, 4)) == FINISHED
    measuring = [
        e["step"] for e in Run(tmp_path / "run").merged("step") if "measuring" in e["parts"]
    ]
    assert measuring == [2, 4]


@pytest.mark.parametrize(
    ("steps", "recorded"),
    [(range(0, 1), [0]), (range(6, 20), [6, 7]), (range(STEPS, 20), []), (range(0, STEPS), None)],
    ids=["the first", "beyond the end", "all beyond the end", "all"],
)
def test_steps_at_the_edges(
    data: Path, tmp_path: Path, steps: range, recorded: list[int] | None
) -> None:
    run = tmp_path / "run"
    assert run_with(data, run, steps) == FINISHED
    recorded = list(range(STEPS)) if recorded is None else recorded
    counts = ranges(trace_of(run)) if trace_of(run).exists() else Counter()
    assert [step for step in range(30) if counts[f"step {step}"]] == recorded
    assert any("--profile" in note for note in notes(run)) == (len(recorded) < len(steps))


def test_a_resumed_run_writes_the_trace_of_its_own_attempt(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop in the middle of the chosen steps: what was recorded is kept."""
    run, stop = tmp_path / "run", StopRequest()
    stop_at(monkeypatch, stop, 4)
    assert run_with(data, run, range(2, 7), stop) == INTERRUPTED
    assert run_with(data, run, range(2, 7)) == FINISHED
    first, second = (ranges(trace_of(run, attempt)) for attempt in (1, 2))
    steps = [[n for n in range(STEPS) if counts[f"step {n}"]] for counts in (first, second)]
    begin = Run(run).starts()[-1]["step"]
    assert 2 < begin < 7
    assert steps[1] == list(range(begin, 7))
    assert set(range(2, begin)) <= set(steps[0])


def stop_at(monkeypatch: pytest.MonkeyPatch, stop: StopRequest, step: int) -> None:
    """Request a stop once this step begins."""
    lap = ProfiledSpans.lap

    def stopping(self: ProfiledSpans, *arguments: Any) -> Any:
        if self._next_step() == step:
            stop.request("the test")
        return lap(self, *arguments)

    monkeypatch.setattr(ProfiledSpans, "lap", stopping)


@pytest.mark.parametrize("failure", ["full", "cut short", "absent"])
def test_a_trace_that_cannot_be_written_ends_no_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def export(self: object, path: str) -> None:
        if failure == "cut short":
            Path(path).write_text('{"traceEvents": [{"name": "st')

    if failure == "full":
        monkeypatch.setattr(trace, "publish", refuse)
    else:
        monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", export)
    run = tmp_path / "run"
    assert run_with(data, run, range(1, 3)) == FINISHED
    assert any("could not be written" in note for note in notes(run))
    names = sorted(path.name for path in trace_of(run).parent.iterdir())
    assert names == ["rank0.jsonl", "rank0.summary.jsonl"]


def test_ranges_that_an_error_leaves_are_closed(tmp_path: Path) -> None:
    step, written = [0], []
    spans = ProfiledSpans(
        HostClock(),
        range(0, 2),
        lambda: step[0],
        torch.device("cpu"),
        lambda profiler, steps: written.append(steps),
    )
    spans.lap()
    with pytest.raises(ValueError), spans("forward"):
        raise ValueError
    for step[0] in (1, 2):
        with spans("forward"), spans("backward"):
            pass
        spans.lap()
    spans.lap()
    assert written == [range(0, 2)]
    assert not spans._ranges


def test_notes_golden(tmp_path: Path) -> None:
    rows: list[tuple[range | None, int, int]] = [
        (None, 0, 50),
        (range(10, 21), 0, 50),
        (range(40, 61), 0, 50),
        (range(40, 61), 45, 50),
        (range(60, 71), 0, 50),
        (range(10, 21), 30, 50),
    ]
    lines = [note for row in rows for note in profile_note(*row)]

    class Unwritable:
        def export_chrome_trace(self, path: str) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Empty:
        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_text("{}")

    write = trace_writer(tmp_path / NAME, lambda text: lines.append(text))
    write(Unwritable(), range(3, 6))  # type: ignore[arg-type]
    write(Empty(), range(3, 4))  # type: ignore[arg-type]
    check_golden("train_trace", [line.replace(str(tmp_path), "ATTEMPT") for line in lines])
