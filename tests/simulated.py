"""A disk and a clock in memory, for code that shares a folder between machines."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class SimulatedFiles:
    """The files of a shared folder. `reachable` says whether this machine reaches it now."""

    content: dict[str, bytes] = field(default_factory=dict)
    reachable: Callable[[], bool] = lambda: True

    def _check(self) -> None:
        if not self.reachable():
            raise OSError(errno.EIO, "the disk does not answer")

    def create(self, name: str, data: bytes, *, durable: bool = False) -> bool:
        self._check()
        if name in self.content:
            return False
        self.content[name] = data
        return True

    def replace(self, name: str, data: bytes) -> None:
        self._check()
        self.content[name] = data

    def read(self, name: str) -> bytes | None:
        self._check()
        return self.content.get(name)

    def names(self, folder: str) -> list[str]:
        self._check()
        start = f"{folder}/"
        return sorted(
            {name[len(start) :].split("/")[0] for name in self.content if name.startswith(start)}
        )


@dataclass
class SimulatedClock:
    """A clock that runs when it is told to, at its own rate."""

    time: float = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
