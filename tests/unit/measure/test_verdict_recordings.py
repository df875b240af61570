"""Verdicts on recorded runs of every row of chaos/verdicts.toml: the rules, without the noise of
the machine that runs the tests."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from stoker.measure.facts_from_events import facts_of_run
from stoker.run.directory import Run
from stoker.run.events import Event
from verdict_recordings import (
    FOLDER,
    KEPT,
    Recording,
    append,
    compact,
    facts_of_events,
    neighbour_share,
    recordings,
    rounded,
    slug,
    write_events,
)
from verdict_rows import ROWS, Outcome, Row, outcome_of, with_fault

FEWEST = 3
"""Recordings of a row."""
SET_ASIDE = 5
"""Of so many recordings of a row one may be wrong for a reason that the index gives."""
TOO_MANY_WRONG = (
    "slow disk",
    "100 Mbit/s",
    "1 Gbit/s",
    "one slow rank",
    "interpreter lock hogged",
    "batch too small",
)
"""Rows with more wrong recordings than that: they were recorded while other jobs used the cores.
More recordings on a quiet machine take a row off this list."""
NEIGHBOUR = 0.10
"""The share of the time that a neighbour takes from a disturbed run, at least."""
FILE_BYTES, ALL_BYTES = 20_000, 1_000_000


@cache
def every() -> list[Recording]:
    return recordings()


def of_row(row: Row) -> list[Recording]:
    return [recording for recording in every() if recording.row == row.name]


@cache
def events_of(recording: Recording) -> list[tuple[int, Event]]:
    return list(recording.events())


def outcome(row: Row, recording: Recording) -> Outcome:
    """The verdict on a recorded run, with the truth of the index."""
    replay = outcome_of(row, partial(facts_of_events, events_of(recording)))
    assert replay is not None, f"{recording.file} has no steps to judge"
    assert replay.truth_s == pytest.approx(recording.without_s, rel=1e-3)
    return Outcome(replay.verdict, recording.without_s, row.within)


def mistakes(row: Row) -> list[str]:
    """A sentence for each recording whose verdict is wrong though the index gives no reason."""
    outcomes = [(r, outcome(row, r)) for r in of_row(row) if not r.reason]
    return [
        f"{r.file}: predicted {o.error or 0:+.1%} off; {o.verdict.lines()}"
        for r, o in outcomes
        if not o.is_right(row)
    ]


each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


@each_row
def test_the_verdict_on_each_recording_is_right(row: Row) -> None:
    assert not mistakes(row)


@each_row
def test_few_recordings_of_a_row_are_set_aside(row: Row) -> None:
    set_aside = [recording for recording in of_row(row) if recording.reason]
    assert len(of_row(row)) >= FEWEST
    few = len(set_aside) <= len(of_row(row)) // SET_ASIDE
    # Fails as well once a row of the list has enough right recordings: take it off the list then.
    assert few == (row.name not in TOO_MANY_WRONG)
    # A reason that is not needed hides a change of the rules.
    assert not [r.file for r in set_aside if outcome(row, r).is_right(row)]


@each_row
def test_at_most_one_recording_of_a_row_is_wrong_without_a_neighbour(row: Row) -> None:
    assert len([r for r in of_row(row) if r.reason and not r.disturbed]) <= 1


@each_row
def test_a_disturbed_recording_shows_its_neighbour(row: Row) -> None:
    for recording in of_row(row):
        if recording.disturbed:
            assert recording.reason
            assert neighbour_share(row, events_of(recording)) >= NEIGHBOUR, recording.file


def stolen(row: Row, events: list[tuple[int, Event]], counted: bool) -> Iterator[tuple[int, Event]]:
    """A run beside other programs as if a hypervisor had taken the cores: the kernel sees no wait
    for a core, only stolen time of the machine; some kernels count it as CPU time of the thread."""
    facts = facts_of_events(events, partial(with_fault, row))
    assert facts is not None and facts.delay_s is not None
    share = facts.delay_s / (facts.delay_s + facts.on_cpu_s)
    cpu = {"busy": 1 - share, "steal": share}
    for rank, event in events:
        if event["kind"] == "step":
            more = {"cores": {**event["cores"], "wait": 0.0}}
            if counted:
                more["on_cpu"] = event["parts"]
            yield rank, {**event, **more}
            yield rank, {"kind": "probe", "step": event["step"], "seconds": 1.0, "cpu": cpu}
        elif event["kind"] != "probe":
            yield rank, event


@pytest.mark.parametrize("counted", [False, True], ids=["not CPU time", "CPU time"])
def test_stolen_time(counted: bool) -> None:
    """No hypervisor here steals on request: recorded waits for a core stand in for it."""
    row = next(row for row in ROWS if row.name == "other programs")
    wrong = []
    for recording in of_row(row):
        events = list(stolen(row, events_of(recording), counted))
        replay = outcome_of(row, partial(facts_of_events, events))
        assert replay is not None
        assert replay.verdict.claim.cause == "cores.stolen"
        if not Outcome(replay.verdict, recording.without_s).is_close:
            wrong.append(recording.file)
    assert len(wrong) <= len(of_row(row)) // SET_ASIDE, wrong


def test_the_index_names_every_file_and_no_other() -> None:
    files = [recording.file for recording in every()]
    assert sorted(files) == sorted(
        path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.jsonl.xz")
    )
    assert {recording.row for recording in every()} == {row.name for row in ROWS}


def test_recordings_are_small() -> None:
    sizes = {path: path.stat().st_size for path in FOLDER.rglob("*.jsonl.xz")}
    assert not [path for path, size in sizes.items() if size > FILE_BYTES]
    assert sum(sizes.values()) < ALL_BYTES


def strings(value: Any) -> Iterator[str]:
    """Every string in an event."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def test_recordings_name_no_path_and_no_machine() -> None:
    for recording in every():
        for _, event in events_of(recording):
            assert not [text for text in strings(event) if text.startswith("/")]
            if event["kind"] == "attempt":
                assert event["environment"]["host"].startswith("host-")


def test_a_row_whose_verdict_changes_is_noticed() -> None:
    disk, nothing = (next(row for row in ROWS if row.name == n) for n in ("slow disk", "nothing"))
    recording = next(r for r in of_row(disk) if not r.reason)
    assert outcome(disk, recording).names(disk)
    assert not outcome(disk, recording).names(nothing)


EVENTS: list[tuple[int, Event]] = [
    (
        rank,
        {
            "kind": "attempt",
            "time": 1.5,
            "step": 0,
            "position": 0,
            "world": 2,
            "local_world": 1,
            "environment": {"host": host, "cores": 2, "command": ["/x/y"], "platform": "Linux"},
        },
    )
    for rank, host in enumerate(["machine-a", "machine-b"])
] + [
    (
        rank,
        {
            "kind": "step",
            "time": 1.5,
            "step": step,
            "position": 8 * step,
            "batch": 8,
            "sums": [1.0, 1.0, 1.0],
            "parts": {"forward": 0.12345678, "exchange": 1e-7 / 3},
        },
    )
    for step in range(6)
    for rank in range(2)
]


def test_what_is_kept_of_events() -> None:
    start, other, step = list(compact([*EVENTS[:3], (0, {"kind": "note", "text": "/x"})]))
    assert start["environment"] == {"host": "host-0", "cores": 2}
    assert other["environment"]["host"] == "host-1" and other["rank"] == 1
    assert set(step) <= {"rank", "kind", *KEPT["step"]}
    assert step["parts"] == {"forward": 0.123457, "exchange": 3.33333e-08}


def test_a_recording_has_the_facts_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run")
    for rank in range(2):
        path = run.events_path(1, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(rounded(event)) for of, event in EVENTS if of == rank]
        path.write_text(
            "\n".join(lines).replace("machine-a", "host-0").replace("machine-b", "host-1")
        )
    recording = Recording("1 Gbit/s", "a/1.jsonl.xz", "2026-01-01", "abc", 0.5, 0.25, True, 'a "b"')
    write_events(run, tmp_path / recording.file)
    append(recording, tmp_path)
    monkeypatch.setattr("verdict_recordings.FOLDER", tmp_path)
    assert recordings(tmp_path) == [recording]
    replay = facts_of_events(recording.events(), lambda step: step > 3)
    assert replay is not None and replay == facts_of_run(run, 1, lambda step: step > 3)
    assert lzma.decompress((tmp_path / recording.file).read_bytes()).count(b"\n") == len(EVENTS)


@pytest.mark.parametrize(
    ("name", "folder"), [("slow disk", "slow-disk"), ("100 Mbit/s", "100-mbit-s")]
)
def test_folder_of_a_row(name: str, folder: str) -> None:
    assert slug(name) == folder
