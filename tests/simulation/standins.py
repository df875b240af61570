"""What stands in for Python's own modules inside the product's code: time, threads and chance.

Each class has the part of the real interface that the product and torch's rendezvous use.
"""

from __future__ import annotations

import hmac as real_hmac
import random as real_random
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent

from simulation.world import Killed, Process, Task, Waiters, current, sleep

EPOCH = 1_800_000_000.0


def monotonic() -> float:
    return current().machine.clock()


def wall_clock() -> float:
    machine = current().machine
    return EPOCH + machine.world.now + machine.skew


TIME = SimpleNamespace(monotonic=monotonic, time=wall_clock, sleep=sleep)


class Calendar:
    """`datetime`, as far as `now`."""

    @staticmethod
    def now(zone: timezone) -> datetime:
        return datetime.fromtimestamp(wall_clock(), zone)


class Lock:
    """A lock between the threads of one process."""

    def __init__(self) -> None:
        self.held = False
        self._waiters = Waiters()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        process = current()
        give_up = None if timeout < 0 else process.machine.clock() + timeout
        while self.held:
            if give_up is None:
                self._waiters.wait()
            elif (left := give_up - process.machine.clock()) > 0:
                self._waiters.wait(left)
            else:
                return False
        self.held = True
        return True

    def release(self) -> None:
        self.held = False
        self._waiters.wake()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class Event:
    """A flag that threads wait for."""

    def __init__(self) -> None:
        self._set = False
        self._waiters = Waiters()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake()

    def wait(self, timeout: float | None = None) -> bool:
        process = current()
        give_up = None if timeout is None else process.machine.clock() + timeout
        while not self._set:
            if give_up is None:
                self._waiters.wait()
            elif (left := give_up - process.machine.clock()) > 1e-9:
                self._waiters.wait(left)
            else:
                break
        return self._set


class Thread:
    """A thread of the process that starts it. One that raises ends, as in Python."""

    def __init__(
        self,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool = True,
    ) -> None:
        self._target, self._arguments = target, args
        self._process: Process | None = None
        self._task: Task | None = None
        self._ended = Event()

    def start(self) -> None:
        self._process = current()
        self._task = self._process.spawn(self._run)

    def _run(self) -> None:
        try:
            self._target(*self._arguments)
        except Exception as error:
            current().world.note(current(), f"a thread ended: {type(error).__name__}: {error}")
        self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        with suppress(Killed):  # also called by a finaliser, when the schedule is over
            if self._process is not current():
                return
            if getcurrent() is self._task:
                raise RuntimeError("cannot join current thread")
            self._ended.wait(timeout)


THREADING = SimpleNamespace(Lock=Lock, Event=Event, Thread=Thread)


class Chance:
    """`random` and `secrets`, from the seed of the schedule."""

    @staticmethod
    def _source() -> real_random.Random:
        return current().world.rng

    @classmethod
    def uniform(cls, low: float, high: float) -> float:
        return cls._source().uniform(low, high)

    @classmethod
    def token_hex(cls, size: int) -> str:
        return cls._source().randbytes(size).hex()

    @classmethod
    def token_bytes(cls, size: int) -> bytes:
        return cls._source().randbytes(size)


class Signatures:
    """`hmac`, by a hash that is made faster."""

    compare_digest = staticmethod(real_hmac.compare_digest)

    @staticmethod
    def digest(key: bytes, content: bytes, kind: object) -> bytes:
        return blake2b(content, key=key, digest_size=32).digest()


class States:
    """`pickle`, for the state of a rendezvous: what is stored names a copy of it."""

    PickleError = ValueError

    @staticmethod
    def dumps(state: Any) -> bytes:
        world = current().world
        world.states.append(copy_of(state))
        return str(len(world.states) - 1).encode()

    @staticmethod
    def loads(data: bytes) -> Any:
        return copy_of(current().world.states[int(data)])


def copy_of(state: Any) -> Any:
    """A copy whose containers are its own."""
    copy = type(state).__new__(type(state))
    for name, value in vars(state).items():
        setattr(copy, name, value.copy() if isinstance(value, dict | set) else value)
    return copy
