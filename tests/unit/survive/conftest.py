from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker.survive.stopping import StopRequest


@pytest.fixture
def wish() -> Iterator[StopRequest]:
    """A wish that listens, and gives the signals back after the test."""
    made = StopRequest()
    made.listen()
    yield made
    made.release()
