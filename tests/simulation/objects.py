"""A simulated object store, and the way of requests to it.

Invariants: the store does one thing at a time, and what it has done every later read sees, as on
S3, GCS, Azure and Ceph. A request takes time on its way there and back. On a bad way it or its
answer is lost, late or repeated, and so it may be applied after its sender gave up or was killed.
A version is a hash of the bytes, or a number of its own, as the seed draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeVar

from simulation.local_disk import LocalPath
from simulation.world import Machine, Process, Waiters, World, current
from stoker.stores.objects import Conflict, Found, Missing, StoreError, Version

Value = TypeVar("Value")


class Bucket:
    """The store itself."""

    def __init__(self, world: World, *, conditional: bool, hashed: bool) -> None:
        self.world, self.conditional = world, conditional
        self._hashed = hashed
        """Whether bytes that are written again give the same version."""
        self.objects: dict[str, tuple[bytes, Version]] = {}
        self._writes = 0
        self.on_write: Callable[[str, bytes, str], None] = lambda key, data, sender: None
        """Called with key, bytes and sender when a write is applied."""

    def read(self, key: str) -> tuple[bytes, Version]:
        if key not in self.objects:
            raise Missing(f"there is no {key}")
        return self.objects[key]

    def found(self, key: str) -> Found | None:
        if key not in self.objects:
            return None
        data, version = self.objects[key]
        return Found(key, len(data), version)

    def below(self, folder: str) -> list[Found]:
        """The objects in a folder, sorted by key."""
        start = f"{folder}/" if folder else ""
        keys = sorted(key for key in self.objects if key.startswith(start))
        return [Found(key, len(self.objects[key][0]), self.objects[key][1]) for key in keys]

    def write(self, key: str, data: bytes, sender: str) -> Version:
        self._writes += 1
        text = blake2b(data, digest_size=8).hexdigest() if self._hashed else str(self._writes)
        version = Version(text)
        self.objects[key] = data, version
        self.on_write(key, data, sender)
        return version

    def write_if(self, key: str, data: bytes, version: Version | None, sender: str) -> Version:
        """Write where the object is of that version; None: where there is none."""
        there = self.objects[key][1] if key in self.objects else None
        if there != version:
            self.world.note(sender, f"may not write {key}: another was first")
            raise Conflict(f"{key} is of another version")
        return self.write(key, data, sender)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)


@dataclass
class Way:
    """How requests travel, until the faults are over."""

    over_at: float
    bad: float
    """The share of requests to which something happens."""
    latest_s: float
    """How late a request or an answer may arrive."""
    patience_s: float
    """How long a client waits for an answer."""
    tries: int
    """How often a client sends a request, if no answer comes."""
    cut: dict[str, str] = field(default_factory=dict)
    """For a machine, the way on which all is lost: `there`, `back` or `both`."""

    def is_cut(self, machine: Machine, way: str) -> bool:
        return self.cut.get(machine.name) in (way, "both")


class Answer:
    """What a client waits for."""

    def __init__(self) -> None:
        self.value: Any = None
        self.error: StoreError | None = None
        self.arrived = False
        self.waiters = Waiters()


class SimulatedObjects:
    """`Objects`, for the current process."""

    location = "s3://bucket/run"

    def __init__(self, bucket: Bucket, way: Way) -> None:
        self.bucket, self.way = bucket, way
        self.conditional = bucket.conditional

    def read(self, key: str, most_bytes: int = 1 << 28) -> tuple[bytes, Version]:
        return self._ask(lambda: self.bucket.read(key))

    def find(self, key: str) -> Found | None:
        return self._ask(lambda: self.bucket.found(key))

    def delete(self, keys: Sequence[str]) -> None:
        self._ask(lambda: self.bucket.delete(keys))

    def write(self, key: str, data: bytes) -> Version:
        sender = str(current())
        return self._ask(lambda: self.bucket.write(key, data, sender))

    def create(self, key: str, data: bytes) -> Version:
        sender = str(current())
        return self._ask(lambda: self.bucket.write_if(key, data, None, sender))

    def replace(self, key: str, data: bytes, version: Version) -> Version:
        sender = str(current())
        return self._ask(lambda: self.bucket.write_if(key, data, version, sender))

    def upload(self, key: str, path: LocalPath) -> Version:
        return self.write(key, path.read_bytes())

    def list(self, prefix: str = "") -> list[Found]:
        return self._ask(lambda: self.bucket.below(prefix))

    def _ask(self, act: Callable[[], Value]) -> Value:
        """The store's answer. Raises StoreError where none comes in time."""
        process = current()
        process.operate()
        for _ in range(self.way.tries):
            answer = Answer()  # one that comes for an earlier try is not looked at
            self._send(process, act, answer)
            answer.waiters.wait(self.way.patience_s)
            if answer.arrived:
                break
        else:
            raise StoreError("the store does not answer")
        process.operate()
        if answer.error is not None:
            raise answer.error
        value: Value = answer.value
        return value

    def _send(self, process: Process, act: Callable[[], object], answer: Answer) -> None:
        world, way, rng = self.bucket.world, self.way, self.bucket.world.rng
        machine = process.machine
        there_s, back_s = rng.random() * 0.1, rng.random() * 0.1
        fate = ""
        if world.now < way.over_at and rng.random() < way.bad:
            fate = rng.choice(("lost", "unanswered", "late", "late answer", "repeated"))
            world.note(process, f"its request is {fate}")
        if fate == "late":
            there_s = rng.random() ** 2 * way.latest_s
        elif fate == "late answer":
            back_s = rng.random() ** 2 * way.latest_s
        elif fate == "repeated":
            again_s = there_s + rng.random() ** 2 * way.latest_s
            world.after(again_s, self._apply, machine, act, answer, back_s)
        if fate != "lost" and not way.is_cut(machine, "there"):
            back = None if fate == "unanswered" else back_s
            world.after(there_s, self._apply, machine, act, answer, back)

    def _apply(
        self, machine: Machine, act: Callable[[], object], answer: Answer, back_s: float | None
    ) -> None:
        """The store does what is asked, and sends an answer."""
        value, error = None, None
        try:
            value = act()
        except StoreError as caught:
            error = caught
        if back_s is not None and not self.way.is_cut(machine, "back"):
            self.bucket.world.after(back_s, self._arrive, answer, value, error)

    def _arrive(self, answer: Answer, value: object, error: StoreError | None) -> None:
        if not answer.arrived:
            answer.arrived, answer.value, answer.error = True, value, error
            answer.waiters.wake()
