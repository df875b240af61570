from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker.survive.stopping import StopRequest


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    """A StopRequest that handles the signals until the test ends."""
    request = StopRequest()
    request.listen()
    yield request
    request.release()
