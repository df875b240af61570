"""Schedules of the simulated fleet: 2,000, others with each commit; 100,000 with --whole. Of a run
in an object store 500, and 20,000."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shares import rotation
from simulation.planted import BUGS
from simulation.schedules import LAST_EVENTS, Name, failures, hunted, numbered, trace
from simulation.seeds import FAILED_ONCE, FINDS

IN_ALL, IN_CI, HUNTED = 100_000, 2_000, 20_000
CHUNKS = {True: 50, False: 8}
STORE_IN_ALL, STORE_IN_CI = 20_000, 500
STORE_CHUNKS = {True: 10, False: 2}

pytestmark = pytest.mark.exact


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first" in metafunc.fixturenames:
        whole = bool(metafunc.config.getoption("--whole"))
        cases = [(None, *chunk) for chunk in chunks(IN_ALL, IN_CI, CHUNKS, whole)]
        cases += [
            ("store", *chunk) for chunk in chunks(STORE_IN_ALL, STORE_IN_CI, STORE_CHUNKS, whole)
        ]
        metafunc.parametrize(("area", "first", "count"), cases)


def chunks(in_all: int, in_ci: int, parts: dict[bool, int], whole: bool) -> list[tuple[int, int]]:
    """The first number and the count of the schedules of each test."""
    count, begin = (in_all, 0) if whole else (in_ci, in_ci * rotation() % in_all)
    size = count // parts[whole]
    return [(first, size) for first in range(begin, begin + count, size)]


def story(name: Name) -> str:
    """The last events of a schedule, and how to see all of them."""
    lines = trace(name)[-LAST_EVENTS:]
    return "\n".join([*lines, f"all events: python tests/simulate.py {name}"])


@pytest.mark.timeout(1200)
def test_whatever_happens_all_that_must_hold_does(area: str | None, first: int, count: int) -> None:
    for failure in failures(numbered(first, count, area)):
        pytest.fail(story(failure.name))


@pytest.mark.parametrize("name", FAILED_ONCE, ids=str)
def test_what_failed_once_holds(name: Name) -> None:
    for failure in failures([name]):
        pytest.fail(story(failure.name))


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_that_is_put_in_is_found(bug: str, whole: bool) -> None:
    """By the schedule that found it first, or by another one; with --whole, by any."""
    area, planted = BUGS[bug]
    known = [] if whole else [FINDS[bug]]
    with planted():
        assert next(failures([*known, *hunted(area, HUNTED)]), None) is not None
    assert not list(failures([FINDS[bug]]))


SHOW = (
    "import sys, hashlib; from simulation.schedules import Name, trace\n"
    "for area, number in (('grid', 7), ('fleet', 12), ('fleet', 90), ('store', 5)):\n"
    "    print(*trace(Name(area, number)), sep='\\n')"
)


def test_a_seed_gives_the_same_events_in_every_process() -> None:
    """Whatever the order of sets, and whatever ran before."""
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, *sys.path])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", warm_up + SHOW],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed, warm_up in (
            ("1", ""),
            (
                "2",
                "from simulation.schedules import failures, numbered\n"
                "list(failures(numbered(0, 10)))\n",
            ),
        )
    }
    assert len(outputs) == 1
    assert len(next(iter(outputs)).splitlines()) > 50
