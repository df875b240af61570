"""The newest events of a file and its first: whole ones only, no more than a verdict needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.run.events import Events
from stoker.train.records.verdicts import BYTES_A_STEP, STEPS_JUDGED, newest

PARTS = {"decode": 0.5, "forward": 0.2, "backward": 0.3}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank0.jsonl"


def write(path: Path, steps: int, pad: int = 0) -> None:
    events = Events(path)
    events.write("attempt", step=0, position=0, environment={"host": "box"})
    for step in range(steps):
        facts = {"batch": 32, "parts": PARTS, "pad": "x" * pad}
        events.write("step", step=step, position=step * 32, **facts)
    events.close()


def test_is_everything_of_a_short_file_once(path: Path) -> None:
    write(path, 50)
    found = newest(path)
    assert [event["kind"] for event in found] == ["attempt", *["step"] * 50]
    assert [event["step"] for event in found[1:]] == list(range(50))


@pytest.mark.parametrize("pad", [0, 700])
def test_is_the_first_line_and_the_end_of_a_long_file(path: Path, pad: int) -> None:
    write(path, 6000, pad)
    first, *rest = newest(path)
    assert first["kind"] == "attempt"
    steps = [event["step"] for event in rest]
    assert steps == list(range(steps[0], 6000))
    assert STEPS_JUDGED <= len(steps) < 6000
    lines = path.read_bytes().splitlines(keepends=True)[-len(rest) :]
    assert sum(map(len, lines)) <= STEPS_JUDGED * BYTES_A_STEP


def test_drops_no_line_of_a_file_that_just_fits(path: Path) -> None:
    write(path, STEPS_JUDGED, 0)
    size = path.stat().st_size
    write(path, 0)  # another first line: it is an event like others there
    assert size < STEPS_JUDGED * BYTES_A_STEP
    assert len(newest(path)) == STEPS_JUDGED + 2


def test_passes_over_a_torn_tail(path: Path) -> None:
    write(path, 20)
    whole = path.read_bytes()
    assert len(whole.splitlines()[-1]) > 60
    for torn in range(1, 60):
        path.write_bytes(whole[:-torn])
        found = newest(path)
        assert [event["step"] for event in found[1:]] == list(range(len(found) - 1))
        assert len(found) - 1 in (19, 20)


def test_of_half_a_line_is_nothing(path: Path) -> None:
    write(path, 0)
    path.write_bytes(path.read_bytes()[:20])
    assert newest(path) == []


def test_of_an_empty_missing_or_unreadable_file_is_nothing(path: Path, tmp_path: Path) -> None:
    assert newest(path) == []
    path.write_bytes(b"")
    assert newest(path) == []
    assert newest(tmp_path) == []


@pytest.mark.parametrize("line", [b"5", b"[]", b"{}", b"null", b"\0\0\0\0", b"\xff\xfe\xfd"])
def test_of_lines_that_are_no_events_keeps_the_others(path: Path, line: bytes) -> None:
    write(path, 10)
    with path.open("ab") as file:
        file.write(line + b"\n")
    found = newest(path)
    assert [event["kind"] for event in found] == ["attempt", *["step"] * 10]
