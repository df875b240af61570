"""Options and rules for all tests.

    --whole             every case of every table, not a share (see shares.py)
    --failures FILE     write the failed tests there: those that may be run once more, alone, and
                        those that may not

A test on a shared machine may fail because a neighbour had the cores. Such a test is run once more
by `.ci/stage.py`. One that measures waits for calm cores before each further try. What asserts
something exact (bits, samples, exit codes) is marked `exact` and is never run again, unless it
failed for want of time.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from cores import Cores
from shares import is_turn

# A busy machine may stop for seconds in the middle of an example: that says nothing about it.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A shell ignores Ctrl-C for what it runs in the background, and tests send it to their processes.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test reaches a real metadata service, nor the price tables of whoever runs the tests.
os.environ["STOKER_METADATA_URL"] = "http://127.0.0.1:9"
os.environ["XDG_DATA_HOME"] = "/nonexistent"

WANT_OF_TIME = ("Missed", "TookTooLong", "TimedOut", "TimeoutExpired")
"""Exceptions that say how long something took, and nothing else."""
RETRY = "may be run again"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="every case, not a share of them")
    parser.addoption("--failures", metavar="FILE", help="write the failed tests to this file")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Heavy tests take turns: `rotates(parts)` runs with one of so many commits in a row."""
    heavy = Counter[Path]()
    for item in [] if config.getoption("--whole") else items:
        mark = item.get_closest_marker("rotates")
        if mark is None:
            continue
        if not is_turn(heavy[item.path], mark.args[0]):
            reason = f"runs with one of {mark.args[0]} commits in a row, and with --whole"
            item.add_marker(pytest.mark.skip(reason=reason))
        heavy[item.path] += 1


CORES = pytest.StashKey[Cores]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that measures has its next try on calm cores."""
    if item.get_closest_marker("alone") is None:
        return
    stash = item.session.stash
    if CORES not in stash:
        stash[CORES] = Cores()
    if getattr(item, "execution_count", 1) > 1:
        stash[CORES].wait_for_calm()


@pytest.fixture(scope="session")
def cores(request: pytest.FixtureRequest) -> Cores:
    """The cores, for a test that is marked `alone` and makes its tries itself."""
    return request.session.stash[CORES]


@pytest.fixture(scope="session")
def whole(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--whole"))


def wants_time(error: BaseException | None) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {*WANT_OF_TIME}) or "Timeout >" in str(error)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    report: pytest.TestReport = yield
    if report.failed and call.excinfo is not None:
        exact = item.get_closest_marker("exact") is not None
        report.user_properties.append((RETRY, not exact or wants_time(call.excinfo.value)))
    return report  # type: ignore[return-value]


class Failures:
    """Gathers the failed tests of all workers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            again = dict(report.user_properties).get(RETRY, True)
            self._failed[report.nodeid] = bool(again) and self._failed.get(report.nodeid, True)

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._failed))


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--failures")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(Path(path)))
