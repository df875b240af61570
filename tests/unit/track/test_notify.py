"""Incidents are found once, and told of by a command that cannot do harm."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.history.status import RunStatus
from stoker.run.listing import FAILED, FINISHED, KILLED, RUNNING, STOPPED
from stoker.track.notify import (
    LONG_S,
    QUIET_S,
    CommandRunner,
    IncidentWatch,
    Notifier,
    RunIncident,
    facts_of,
    run_command,
)

HOSTILE = "\x1b]0;owned\x07 $(touch x) `x` ; rm -rf / \n second line"
LIVING = RunStatus(RUNNING, 1, 40, 0.5, 1.25, progress=40)
PRINT = [
    sys.executable,
    "-c",
    "import os, sys; print(sys.argv[1:], {k: v for k, v in sorted(os.environ.items()) "
    "if k.startswith('STOKER_')})",
]


def ended(outcome: str, state: str, reason: str = "") -> RunStatus:
    return replace(LIVING, state=state, end={"kind": "end", "outcome": outcome, "reason": reason})


def events(watch: IncidentWatch, status: RunStatus, now_s: float = 0.0) -> list[str]:
    return [incident.event for incident in watch.look(status, now_s)]


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (ended("finished", FINISHED), "finished"),
        (ended("interrupted", STOPPED, "SIGTERM"), "stopped"),
        (ended("failed", FAILED, "loss is NaN"), "failed"),
        (replace(LIVING, state=KILLED), "killed"),
    ],
)
def test_an_end_is_told_of_once_also_one_from_before(status: RunStatus, event: str) -> None:
    watch = IncidentWatch(2e9)
    assert events(watch, status) == [event]
    assert events(watch, status) == []


def test_a_living_run_is_no_incident() -> None:
    watch = IncidentWatch(0.0)
    assert events(watch, LIVING) == []
    assert events(watch, replace(LIVING, end={"outcome": "finished"})) == []  # it is still ending


def test_a_stall_event_is_told_of_unless_it_is_old() -> None:
    stalls = tuple({"kind": "stall", "time": at, "words": "rank 1"} for at in (1e9, 2e9))
    watch = IncidentWatch(1.5e9)
    assert events(watch, replace(LIVING, stalls=stalls[:1])) == []
    assert events(watch, replace(LIVING, stalls=stalls)) == ["stalled"]
    assert events(watch, replace(LIVING, stalls=stalls)) == []


def test_no_progress_is_a_stall_and_progress_ends_it() -> None:
    watch = IncidentWatch(0.0)
    assert events(watch, LIVING, 0.0) == []
    assert events(watch, LIVING, QUIET_S - 1) == []
    assert events(watch, LIVING, QUIET_S + 1) == ["stalled"]
    assert events(watch, LIVING, 3 * QUIET_S) == []
    later = replace(LIVING, progress=41)
    assert events(watch, later, 3 * QUIET_S + 1) == []
    assert events(watch, later, 5 * QUIET_S) == ["stalled"]


def test_an_evaluation_may_take_longer() -> None:
    watch, status = IncidentWatch(0.0), replace(LIVING, is_long=True)
    assert events(watch, status, 0.0) == []
    assert events(watch, status, QUIET_S + 1) == []
    assert events(watch, status, LONG_S + 1) == ["stalled"]


def test_a_run_that_is_killed_again_is_told_of_again() -> None:
    watch = IncidentWatch(0.0)
    assert events(watch, replace(LIVING, state=KILLED)) == ["killed"]
    assert events(watch, LIVING) == []
    assert events(watch, replace(LIVING, state=KILLED, attempt=2, progress=3)) == ["killed"]


@pytest.mark.parametrize("damage", ["", "{", '{"a": 1}', "[1, 2]"])
def test_a_restarted_tracker_knows_what_was_told(tmp_path: Path, damage: str) -> None:
    kept = tmp_path / "new" / "notified.json"
    status = ended("finished", FINISHED)
    assert events(IncidentWatch(0.0, kept), status) == ["finished"]
    assert events(IncidentWatch(0.0, kept), status) == []
    kept.write_text(damage)
    assert events(IncidentWatch(0.0, kept), status) == ["finished"]


def test_the_command_gets_facts_in_its_environment_alone() -> None:
    incident = RunIncident("failed", "k", HOSTILE)
    facts = facts_of(Path("/runs/$(x)"), LIVING, incident)
    (line,) = run_command([*PRINT, "a b"], facts, 30)
    assert line.startswith("notify: ['a b'] {'STOKER_BEST': '0.5', 'STOKER_DOLLARS': '1.25'")
    assert facts["STOKER_RUN"] == "/runs/$(x)"
    assert facts["STOKER_STEP"] == "40"
    assert "\x1b" not in facts["STOKER_MESSAGE"]
    assert "second line" not in facts["STOKER_MESSAGE"]


def test_facts_that_are_not_known_are_empty() -> None:
    facts = facts_of(Path("r"), RunStatus(KILLED), RunIncident("killed", "k", "a\0b"))
    assert (facts["STOKER_BEST"], facts["STOKER_DOLLARS"]) == ("", "")
    assert not any("\0" in value for value in facts.values())


def test_what_a_command_prints_has_no_control_codes() -> None:
    facts = facts_of(Path("r"), LIVING, RunIncident("killed", "k", "x"))
    source = "print('\\x1b[2Jhello'); import sys; sys.exit(3)"
    lines = run_command([sys.executable, "-c", source], facts, 30)
    assert lines[0] == "notify: \\x1b[2Jhello"
    assert "failed with code 3 (killed)" in lines[1]


@pytest.mark.parametrize("words", [["/no/such/program"], [os.devnull], ["x\0y"]])
def test_a_command_that_cannot_be_started_is_a_note(words: list[str]) -> None:
    facts = facts_of(Path("r"), LIVING, RunIncident("killed", "k", "x"))
    (line,) = run_command(words, facts, 30)
    assert line.startswith("note: --notify ")
    assert "cannot be started" in line


def test_a_command_has_a_limited_time() -> None:
    facts = facts_of(Path("r"), LIVING, RunIncident("killed", "k", "x"))
    (line,) = run_command(["sleep", "600"], facts, 0.05)
    assert line == "note: --notify sleep was ended after 0.05 s"


def test_the_notifier(tmp_path: Path) -> None:
    lines: list[str] = []
    runner = CommandRunner(PRINT, lines.append)
    notifier = Notifier(tmp_path, IncidentWatch(0.0), runner, lines.append)
    notifier.look(LIVING)
    notifier.look(ended("failed", FAILED, HOSTILE))
    notifier.look(ended("failed", FAILED, HOSTILE))
    notifier.finish()
    assert len(lines) == 2
    assert lines[0].startswith("notifies (failed): failed at step 40: \\x1b]0;owned")
    assert json.dumps(str(tmp_path))[1:-1] in lines[1]
