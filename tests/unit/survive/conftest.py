from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker.survive.stopping import StopWish


@pytest.fixture
def wish() -> Iterator[StopWish]:
    """A wish that listens, and gives the signals back after the test."""
    made = StopWish()
    made.listen()
    yield made
    made.release()
