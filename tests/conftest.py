"""Options and rules for all tests.

    --whole             every case of every table, not a share (see shares.py)
    --outcomes FILE     write there how many tests passed and were skipped, and those that failed:
                        whether each may be run once more, alone
    --again             run the named tests, whether or not it is their turn

A test on a shared machine may fail because a neighbour had the cores. Such a test is run once more
by `.ci/stage.py`. One that measures waits for calm cores before each further try. What asserts
something exact (bits, samples, exit codes) is marked `exact` and is never run again, unless it
failed for want of time. Processes that a failed test has started end with it.
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

# A shell ignores Ctrl-C for what it runs in the background, nohup ignores the hang-up, and tests
# send both to their processes. A handler of our own is not inherited: they begin with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

# No test reaches a real metadata service, nor the price tables of whoever runs the tests.
os.environ["STOKER_METADATA_URL"] = "http://127.0.0.1:9"
os.environ["XDG_DATA_HOME"] = "/nonexistent"

WANT_OF_TIME = ("Missed", "TookTooLong", "TimedOut", "TimeoutExpired")
"""Exceptions that say how long something took, and nothing else."""
RETRY = "may be run again"
STARTED_BY = "STOKER_TEST_STARTED_BY"
"""The variable that marks the processes of a test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="every case, not a share of them")
    parser.addoption("--outcomes", metavar="FILE", help="write what became of the tests there")
    parser.addoption("--again", action="store_true", help="also tests whose turn it is not")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Heavy tests take turns: `rotates(parts)` runs with one of so many commits in a row."""
    heavy = Counter[Path]()
    every = config.getoption("--whole") or config.getoption("--again")
    for item in [] if every else items:
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


class Outcomes:
    """Gathers what became of the tests of all workers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: dict[str, bool] = {}
        self._others: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            again = dict(report.user_properties).get(RETRY, True)
            self._failed[report.nodeid] = bool(again) and self._failed.get(report.nodeid, True)
        elif report.skipped or report.when == "call":
            self._others[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        others = Counter(self._others[name] for name in self._others.keys() - self._failed.keys())
        counts = {kind: others[kind] for kind in ("passed", "skipped")}
        self._path.write_text(json.dumps({**counts, "failed": self._failed}))


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(path)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """What a failed test has started is killed: nothing waits for it any more."""
    os.environ[STARTED_BY] = mark = f"{os.getpid()}-{id(item)}"
    try:
        return (yield)
    except BaseException as error:
        if not isinstance(error, pytest.skip.Exception):
            kill_started_by(mark)
        raise
    finally:
        os.environ.pop(STARTED_BY, None)


def kill_started_by(mark: str) -> None:
    """Kill the processes that have a test's mark in their environment."""
    text = f"{STARTED_BY}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if text in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            pass  # it has ended, or is another user's
