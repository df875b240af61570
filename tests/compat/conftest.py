from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.trainers import Trainers
from compat.kept import PINNED


@pytest.fixture(scope="session")
def pinned_trainers() -> Iterator[Trainers]:
    """Training processes whose bits do not depend on the CPU."""
    server = Trainers(PINNED)
    yield server
    server.close()
