"""A stop request inside a finaliser, where Python drops exceptions, is not lost."""

from __future__ import annotations

import io
import os
import signal

import pytest

from stoker.survive.stopping import StopNow, StopRequest
from waiting import until


class ClosedLate(io.RawIOBase):
    """Closed when it is forgotten, as each member of a tar is; a signal comes just then."""

    def close(self) -> None:
        if not self.closed:
            signal.raise_signal(signal.SIGTERM)
            # Handlers run between two steps of the interpreter: here.
            os.getpid()
        super().close()


def is_raised_after_a_finaliser(stop: StopRequest) -> None:
    with pytest.raises(StopNow), stop.at_once():
        file = ClosedLate()
        del file
        until(lambda: False)


@pytest.mark.timeout(300)
def test_it_is_raised_after_the_finaliser(stop: StopRequest) -> None:
    is_raised_after_a_finaliser(stop)
    assert stop.reason == "SIGTERM"


@pytest.fixture
def elastic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_ELASTIC", "1")


@pytest.mark.timeout(300)
def test_a_repeated_signal_is_the_same_request(elastic: None, stop: StopRequest) -> None:
    is_raised_after_a_finaliser(stop)
    assert stop.reason == "the nodes of the run change"
    assert stop.steps_aside


@pytest.mark.timeout(300)
def test_a_second_signal_is_raised_where_the_first_was_lost(stop: StopRequest) -> None:
    with pytest.raises(StopNow), stop.at_once():
        file = ClosedLate()
        del file
        signal.raise_signal(signal.SIGTERM)
        os.getpid()
