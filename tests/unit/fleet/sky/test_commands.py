"""What SkyPilot says, and what is made of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import StokerError
from stoker.fleet.sky.commands import SkyStates, answer, find_sky, read_states
from stoker.fleet.sky.records import GONE, LAUNCHING, UNLISTED, CloudJob

CLUSTER = CloudJob("mine", False, 1000.0, "L4:1", "gs://b/mine")
MANAGED = CloudJob("mine", True, 1000.0, "L4:1", "gs://b/mine", state="launched")


@pytest.mark.parametrize(
    ("clusters", "state"),
    [
        ({}, GONE),
        ({"other": "UP"}, GONE),
        ({"mine": "UP"}, "UP"),
        ({"mine": "STOPPED"}, "STOPPED"),
        ({"mine": "INIT"}, "INIT"),
    ],
)
def test_a_machine_is_gone_where_skypilot_has_none(clusters: dict[str, str], state: str) -> None:
    assert SkyStates(clusters).of(CLUSTER) == state


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([], UNLISTED),
        ([{"job_name": "other", "status": "SUCCEEDED", "submitted_at": 1001}], UNLISTED),
        ([{"job_name": "mine", "status": "SUCCEEDED", "submitted_at": 1}], UNLISTED),
        ([{"job_name": "mine", "status": "RUNNING", "submitted_at": 1001}], "RUNNING"),
        ([{"job_name": "mine", "status": "RECOVERING", "submitted_at": 1001}], "RECOVERING"),
        ([{"job_name": "mine", "status": "SUCCEEDED", "submitted_at": 1001}], GONE),
        ([{"job_name": "mine", "status": "FAILED_SETUP", "submitted_at": 1001}], GONE),
        ([{"job_name": "mine", "status": "CANCELLING", "submitted_at": 1001}], "CANCELLING"),
        (
            [
                {
                    "job_name": "mine",
                    "status": "SUCCEEDED",
                    "submitted_at": 1001,
                    "schedule_state": "ALIVE",
                }
            ],
            "SUCCEEDED",
        ),
        (
            [
                {"job_name": "mine", "status": "FAILED", "submitted_at": 1001},
                {"job_name": "mine", "status": "RUNNING", "submitted_at": 2001},
            ],
            "RUNNING",
        ),
        ([{"job_name": "mine", "status": None, "submitted_at": 1001}], "unknown"),
        (None, GONE),
    ],
)
def test_a_managed_job_is_gone_when_its_controller_has_cleaned_up(
    rows: list[dict[str, Any]] | None, state: str
) -> None:
    assert SkyStates({}, rows).of(MANAGED) == state


def test_a_launch_that_submitted_nothing_has_rented_nothing() -> None:
    failed = CloudJob("mine", True, 1000.0, "L4:1", "gs://b/mine", state=LAUNCHING)
    assert SkyStates({}, []).of(failed) == GONE


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "sky"
    path.write_text(f"#!{sys.executable}\nimport sys, json\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sys.exit('Traceback\\nError: no cloud is enabled')", "no cloud is enabled"),
        ("sys.exit(3)", "it ended with 3"),
        ("print('a table')", "no list of JSON"),
        ("print('[1, {')", "no list of JSON"),
        ("print('[' * 100000)", "no list of JSON"),
    ],
)
def test_no_answer_is_an_error(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(StokerError, match=complaint):
        answer([program(tmp_path, text), "status", "--refresh"])


def test_notices_before_the_list_are_passed_over(tmp_path: Path) -> None:
    sky = program(
        tmp_path, "print('hint: upgrade'); print(json.dumps([{'name': 'a'}, 3], indent=2))"
    )
    assert answer([sky, "status"]) == [{"name": "a"}]


def test_a_stopped_controller_has_no_jobs_left(tmp_path: Path) -> None:
    rows = [{"name": "sky-jobs-controller-12ab", "status": "STOPPED"}]
    sky = program(
        tmp_path, f"print(json.dumps({rows})) if sys.argv[1] == 'status' else sys.exit(1)"
    )
    states = read_states(sky, managed=True)
    assert states.jobs is None
    assert states.controllers == {"sky-jobs-controller-12ab": "STOPPED"}


def test_a_machine_without_skypilot_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StokerError, match="pip install 'skypilot"):
        find_sky()
