"""A wish to stop that falls into a finaliser, which swallows what is raised in it, is not lost."""

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


def is_heard_after_a_finaliser(wish: StopRequest) -> None:
    with pytest.raises(StopNow), wish.at_once():
        file = ClosedLate()
        del file
        until(lambda: False)


@pytest.mark.timeout(300)
def test_it_is_heard_after_the_finaliser(wish: StopRequest) -> None:
    is_heard_after_a_finaliser(wish)
    assert wish.reason == "SIGTERM"


@pytest.fixture
def elastic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_ELASTIC", "1")


@pytest.mark.timeout(300)
def test_to_be_reminded_is_no_other_wish(elastic: None, wish: StopRequest) -> None:
    is_heard_after_a_finaliser(wish)
    assert wish.reason == "the nodes of the run change"
    assert wish.aside


@pytest.mark.timeout(300)
def test_a_second_signal_is_heard_where_the_first_was_lost(wish: StopRequest) -> None:
    with pytest.raises(StopNow), wish.at_once():
        file = ClosedLate()
        del file
        signal.raise_signal(signal.SIGTERM)
        os.getpid()
