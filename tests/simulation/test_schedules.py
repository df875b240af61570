"""Schedules of the simulated fleet: 2,000, others with each commit; 100,000 with --whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shares import rotation
from simulation.planted import BUGS
from simulation.schedules import LAST_EVENTS, Name, failures, numbered, trace
from simulation.seeds import FAILED_ONCE, FINDS

IN_ALL, IN_CI, HUNTED = 100_000, 2_000, 20_000
CHUNKS = {True: 50, False: 8}

pytestmark = pytest.mark.exact


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first" in metafunc.fixturenames:
        whole = bool(metafunc.config.getoption("--whole"))
        count, begin = (IN_ALL, 0) if whole else (IN_CI, IN_CI * rotation() % IN_ALL)
        size = count // CHUNKS[whole]
        firsts = range(begin, begin + count, size)
        metafunc.parametrize(("first", "count"), [(first, size) for first in firsts])


def story(name: Name) -> str:
    """The last events of a schedule, and how to see all of them."""
    lines = trace(name)[-LAST_EVENTS:]
    return "\n".join([*lines, f"all events: python tests/simulate.py {name}"])


@pytest.mark.timeout(1200)
def test_whatever_happens_all_that_must_hold_does(first: int, count: int) -> None:
    for failure in failures(numbered(first, count)):
        pytest.fail(story(failure.name))


@pytest.mark.parametrize("name", FAILED_ONCE, ids=str)
def test_what_failed_once_holds(name: Name) -> None:
    for failure in failures([name]):
        pytest.fail(story(failure.name))


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_that_is_put_in_is_found(bug: str, whole: bool) -> None:
    """By the schedule that found it first, or by another one; with --whole, by any."""
    area, planted = BUGS[bug]
    names = [name for name in numbered(0, HUNTED) if name.area == area]
    if not whole:
        names.insert(0, FINDS[bug])
    with planted():
        assert next(failures(names), None) is not None
    assert not list(failures([FINDS[bug]]))


SHOW = (
    "import sys, hashlib; from simulation.schedules import Name, trace\n"
    "for area, number in (('grid', 7), ('fleet', 12), ('fleet', 90)):\n"
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
