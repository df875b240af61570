"""What is read through a summary is what the events say, whatever happened to either file."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from damaged_events import FLIPS, HARMLESS_LINES, NOT_EVENTS, WRONG_FIELDS, flip
from made_runs import RunMaker
from stoker.history.history import history_of
from stoker.price.ledger.cost import cost_of
from stoker.run.directory import Run
from stoker.run.events import Events, summary_path
from stoker.run.kinds import Event, event_of
from stoker.run.summaries import RowReader
from stoker.show.explain import explain

STEPS = 300


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two ranks, killed at step 180, resumed at 133 and finished."""
    maker = RunMaker(tmp_path / "run", steps=STEPS, ranks=2)
    return maker.attempt(0, 180, None).attempt(133, STEPS).run


def summaries(run: Run) -> list[Path]:
    return sorted(run.path.glob("attempts/*/rank*.summary.jsonl"))


def figures(run: Run) -> dict[str, Any]:
    """What readers make of a run."""
    history, cost = history_of(run), cost_of(run)
    return {
        "made": run.steps_made,
        "seconds": history.ledger.total_s,
        "redone": (history.ledger.redone_steps, history.ledger.redone_s),
        "parts": dict(history.ledger.parts),
        "evaluations": [event["position"] for event in run.merged("evaluation")],
        "end": {name: fact for name, fact in (run.end() or {}).items() if name != "span"},
        "dollars": cost.dollars,
        "ranks": {rank: (one.steps, one.own_s) for rank, one in history.ranks.items()},
        "loss": history.sums.curve(1).loss.tolist(),
        "lines": explain(run),
    }


def same(one: Any, other: Any, where: str = "figures") -> None:
    """Assert that two values are equal, numbers in them nearly."""
    if isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-4), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            same(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for number, (part, same_part) in enumerate(zip(one, other, strict=True)):
            same(part, same_part, f"{where}.{number}")
    else:
        assert one == other, where


def without_summaries(run: Run) -> dict[str, Any]:
    for path in summaries(run):
        path.unlink()
    return figures(run)


def test_an_older_run_without_summaries_reads_the_same(run: Run) -> None:
    assert len(summaries(run)) == 4
    with_summaries = figures(run)
    same(with_summaries, without_summaries(run))


def test_a_summary_is_a_few_hundredths_of_the_events(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=3000, step_s=0.05).attempt(0, 3000).run
    events = run.events_path(1, 0)
    assert summary_path(events).stat().st_size < 0.06 * events.stat().st_size


def test_summaries_are_used(run: Run) -> None:
    """Else the tests above would compare a file with itself."""
    for attempt in run.attempts():
        for rank in run.ranks(attempt):
            path = run.events_path(attempt, rank)
            lines = path.read_bytes().splitlines(keepends=True)
            blank = [
                line if b'"step"' not in line[:20] else b" " * (len(line) - 1) + b"\n"
                for line in lines
            ]
            assert len(blank) == len(lines)
            path.write_bytes(b"".join(blank))
    covered = sum(row["count"] for row in run.attempt_rows(2) if row["kind"] == "steps")
    assert covered == STEPS - 133


def test_the_steps_of_a_cut_row_are_divided_exactly(run: Run) -> None:
    redone = [row for row in run.rows() if row["kind"] == "steps" and row["redone"]]
    assert min(row["step"] for row in redone) == 133
    assert sum(row["count"] for row in redone) == 180 - 133
    assert [
        step for row in run.step_rows() for step in range(row["step"], row["last"] + 1)
    ] == list(range(STEPS))


def test_a_killed_writer_leaves_the_last_seconds_to_the_events(run: Run) -> None:
    last = json.loads(summary_path(run.events_path(1, 0)).read_bytes().splitlines()[-1])
    assert last["span"][1] < run.events_path(1, 0).stat().st_size
    assert history_of(run).attempts[1].steps == 180


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lose_lines(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3] + lines[6:]))


def shuffle_lines(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    random.Random(1).shuffle(lines)
    path.write_bytes(b"".join(lines))


def repeat_lines(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def become_the_other_rank(path: Path) -> None:
    other = path.with_name(path.name.replace("rank0", "rank1"))
    path.write_bytes(other.read_bytes())


DAMAGES = [
    cut_in_half,
    lose_lines,
    repeat_lines,
    become_folder,
    become_pipe,
    become_zeros,
    become_the_other_rank,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_summary_loses_nothing(run: Run, damage: Callable[[Path], None]) -> None:
    before = figures(run)
    for path in summaries(run):
        if "rank0" in path.name:
            damage(path)
    after = figures(run)
    for name in ("made", "evaluations", "redone"):
        if damage is not become_the_other_rank:
            assert after[name] == pytest.approx(before[name]), name
    assert after["seconds"] == pytest.approx(before["seconds"], rel=0.05)


def test_lines_in_another_order_stop_no_reader(run: Run) -> None:
    for path in summaries(run):
        shuffle_lines(path)
    assert figures(run)["made"] == STEPS


@pytest.mark.parametrize("name", sorted(NOT_EVENTS | WRONG_FIELDS | HARMLESS_LINES))
def test_a_line_that_is_no_event_ends_the_summary_and_loses_nothing(run: Run, name: str) -> None:
    before = figures(run)
    line = (NOT_EVENTS | WRONG_FIELDS | HARMLESS_LINES)[name]
    path = summary_path(run.events_path(2, 0))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:6], line + b"\n", *lines[6:]]))
    same(before, figures(run))


@pytest.mark.parametrize(
    "change",
    [
        {"span": [0, 10**9]},
        {"span": [5, 3]},
        {"span": "x"},
        {"span": [-1, 5]},
        {"span": None},
        {"count": 0},
        {"count": 10**9},
        {"own_s": []},
        {"own_s": [float("nan")]},
        {"last": 10**12},
        {"parts": {"forward": "x"}},
        {"sums": [1.0]},
        {"until": "x"},
        {"position": None},
        {"epoch": []},
        {"lr": "high"},
    ],
    ids=str,
)
def test_a_row_that_does_not_fit_is_folded_from_the_events(
    run: Run, change: dict[str, Any]
) -> None:
    before = figures(run)
    path = summary_path(run.events_path(2, 0))
    lines = path.read_bytes().splitlines()
    rows = [number for number, line in enumerate(lines) if b'"kind":"steps"' in line]
    number = rows[len(rows) // 2]
    lines[number] = json.dumps({**json.loads(lines[number]), **change}).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    same(before, figures(run))


def test_one_changed_byte_of_a_summary_never_stops_a_reader(run: Run) -> None:
    path = summary_path(run.events_path(2, 1))
    whole = path.read_bytes()
    for number in FLIPS[::5]:
        path.write_bytes(flip(whole, number))
        history_of(run)
        run.end()


def test_events_that_were_cut_off_are_not_made_up(run: Run) -> None:
    path = run.events_path(2, 0)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))
    steps = [event["step"] for event in run.attempt_events(2) if event["kind"] == "step"]
    assert run.steps_made == steps[-1] + 1
    assert run.end() is None


def test_an_empty_file_of_events_has_no_rows(run: Run) -> None:
    run.events_path(2, 0).write_bytes(b"")
    assert list(run.attempt_rows(2)) == []


class TestFollowing:
    def test_reading_again_gives_what_was_added(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.jsonl"
        events, reader = Events(path), RowReader(path)
        seen: list[Event] = []
        for number in range(40):
            events.write("step", step=number, position=number, batch=1, parts={"forward": 1.0})
            if number % 3 == 0:
                events.flush()
                seen += reader.read()
        events.close()
        seen += reader.read()
        steps = [n for row in seen for n in range(row["step"], row["last"] + 1)]
        assert steps == list(range(40))
        assert list(reader.read()) == []

    def test_half_a_line_is_read_when_it_is_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.jsonl"
        reader, line = RowReader(path), b'{"kind": "note", "words": "x"}\n'
        assert list(reader.read()) == []
        path.write_bytes(line + line[:10])
        assert len(list(reader.read())) == 1
        path.write_bytes(line + line)
        assert [row["words"] for row in reader.read()] == ["x"]

    def test_a_line_that_is_too_long_is_passed_over(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.jsonl"
        line = b'{"kind": "note", "words": "x"}\n'
        path.write_bytes(line + b"y" * (3 << 20) + b"\n" + line)
        reader = RowReader(path)
        assert len(list(reader.read())) == 2
        assert list(reader.read()) == []


class TestWriting:
    def test_a_summary_never_tells_of_events_that_are_not_in_their_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "rank0.jsonl"
        events = Events(path)
        events.write("note", words="a")
        events.flush()
        real, full = os.write, True

        def write(handle: int, data: bytes) -> int:
            if full:
                raise OSError(errno.ENOSPC, "full")
            return real(handle, data)

        monkeypatch.setattr(os, "write", write)
        events.write("note", words="b")
        assert not events.flush()
        assert len(summary_path(path).read_bytes().splitlines()) == 1
        full = False
        assert events.flush()
        assert len(summary_path(path).read_bytes().splitlines()) == 2
        events.close()

    def test_a_summary_that_cannot_be_opened_harms_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.jsonl"
        summary_path(path).mkdir()
        events = Events(path)
        events.write("note", words="a")
        assert events.flush()
        events.close()
        assert [row["words"] for row in RowReader(path).read()] == ["a"]

    def test_an_event_that_cannot_be_folded_ends_the_summary_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.jsonl"
        events = Events(path)
        events.write("step", step=0)  # without a position
        events.write("note", words="a")
        events.close()
        assert len(path.read_bytes().splitlines()) == 2
        assert summary_path(path).read_bytes() == b""

    def test_events_appended_by_a_second_writer_are_covered(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.jsonl"
        for words in ("a", "b"):
            events = Events(path)
            events.write("note", words=words)
            events.close()
        with path.open("ab") as file:
            file.write(b'{"kind": "note", "words": "c"}\n')
        assert [row["words"] for row in RowReader(path).read()] == ["a", "b", "c"]

    def test_each_line_is_an_event(self, run: Run) -> None:
        for path in summaries(run):
            assert all(event_of(line) for line in path.read_bytes().splitlines())
