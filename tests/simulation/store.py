"""Schedules of machines that train one run in an object store: the product's own lease, head and
folders, with simulated requests, clocks, disks and trainers.

Must hold, on a store with conditional writes: never two processes hold the lease at a time. The
committed position never goes back, and what was committed once stays in the head. A commit that
was acknowledged is in the head, and a lease that is reported as lost is. On any store: a folder
with its marker has all its files, with their hashes, and its event segments are in the store; so a
folder that is taken is whole, wherever it is taken from. Once the faults are over, the run finishes
in time, and its events hold each step once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from simulation.local_disk import LocalDisk
from simulation.objects import Bucket, Way
from simulation.trainer import FollowedLease, Observer, Trainer, whole
from simulation.world import Machine, Process, Violation, World
from stoker.commit import sha256_of
from stoker.errors import FINISHED
from stoker.stores.head import KEY, Head, parse_head
from stoker.stores.lease import MARGIN
from stoker.survive.manifest import MARKER

FAULTS_S = 80.0
"""Faults begin within this time."""
KINDS = ("kill", "kill_at", "kill_at", "pause", "pause", "freeze", "cut", "cut", "stop", "wipe")


@dataclass(eq=False)
class StoreMachine:
    """A machine on which a trainer runs, and is started again."""

    machine: Machine
    ttl_s: float
    disk: LocalDisk = field(default_factory=LocalDisk)
    process: Process | None = None
    lease: FollowedLease | None = None
    stopped: bool = False


class StoreSchedule:
    """One schedule: machines, a store, a run and faults, all drawn from the seed."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = world = World(seed, tracing=tracing)
        rng = world.rng
        self.bucket = Bucket(world, conditional=rng.random() < 0.8, hashed=rng.random() < 0.5)
        self.bucket.on_write = self._written
        self.ttl_s = rng.choice((6.0, 15.0, 30.0))
        self.renews = rng.choice((0.2, 0.33, 0.6))
        """The part of `ttl_s` after which a holder renews its lease."""
        self.patience_s = self.ttl_s * rng.choice((0.0, 0.5, 2.0))
        self.slots = [self._draw_machine(number) for number in range(rng.randint(2, 4))]
        self.steps, self.step_s = rng.randint(6, 16), rng.choice((1.0, 3.0, 6.0))
        self.save_every = rng.randint(1, 4)
        self.deletes = self.bucket.conditional and rng.random() < 0.4
        self.deleted: set[str] = set()
        self.commits: list[str] = []
        """All that were ever in a head."""
        self.head: Head | None = None
        self.finished = False
        self.observer: Process | None = None
        lasts = max([0.0, *(self._draw_fault() for _ in range(rng.choice((0, 1, 2, 3, 5))))])
        self.way = self._draw_way(FAULTS_S + lasts)
        work = self.steps * self.step_s * 2 + 200.0
        turns = len(self.slots) * (MARGIN * self.ttl_s + 3 * self.way.patience_s)
        self.until = self.way.over_at + 2 * self.way.latest_s + 2 * (work + 2 * turns)

    def _draw_machine(self, number: int) -> StoreMachine:
        rng = self.world.rng
        rate = rng.choice((0.9, 1.0, 1.1, rng.uniform(0.9, 1.1)))
        ttl_s = self.ttl_s * rng.choice((1.0, 1.0, 1.0, 0.5))
        slot = StoreMachine(Machine(self.world, f"machine{number}", rate), ttl_s)
        self.world.at(rng.random() * 10, self._start, slot)
        return slot

    def _draw_way(self, over_at: float) -> Way:
        rng = self.world.rng
        return Way(
            over_at,
            rng.choice((0.0, 0.02, 0.1, 0.3)),
            self.ttl_s * rng.choice((0.5, 1.5, 3.0)),
            self.ttl_s * rng.choice((0.1, 0.4, 1.5)),
            rng.choice((1, 1, 2)),
        )

    def _draw_fault(self) -> float:
        """Draw one fault; returns how long after FAULTS_S it may last."""
        rng = self.world.rng
        slot, begin, kind = rng.choice(self.slots), rng.random() * FAULTS_S, rng.choice(KINDS)
        lasts = self.ttl_s * rng.choice((rng.uniform(0.1, 1), rng.uniform(1, 3)))
        self.world.at(begin, getattr(self, f"_{kind}"), slot, lasts)
        return lasts

    # Faults.

    def _kill(self, slot: StoreMachine, seconds: float) -> None:
        if slot.process:
            slot.process.kill()

    def _kill_at(self, slot: StoreMachine, seconds: float) -> None:
        if slot.process:
            slot.process.dies_at = slot.process.operations + self.world.rng.randint(1, 60)

    def _wipe(self, slot: StoreMachine, seconds: float) -> None:
        """The machine is gone; another one with an empty disk takes its place."""
        self._kill(slot, seconds)
        slot.disk = LocalDisk()

    def _stop(self, slot: StoreMachine, seconds: float) -> None:
        self.world.note(slot.process, "is told to stop")
        slot.stopped = True

    def _pause(self, slot: StoreMachine, seconds: float) -> None:
        process = slot.process
        if process and not process.dead:
            self.world.note(process, f"is paused for {seconds:.1f} s")
            process.paused = True
            self.world.after(seconds, self._continue, process)

    def _continue(self, process: Process) -> None:
        self.world.note(process, "goes on")
        process.paused = False
        process.go_on()

    def _freeze(self, slot: StoreMachine, seconds: float) -> None:
        self.world.note(slot.machine, f"stands still for {seconds:.1f} s")
        slot.machine.paused = True
        self.world.after(seconds, self._thaw, slot.machine)

    def _thaw(self, machine: Machine) -> None:
        self.world.note(machine, "goes on")
        machine.paused = False
        for process in list(machine.processes.values()):
            process.go_on()

    def _cut(self, slot: StoreMachine, seconds: float) -> None:
        name, way = slot.machine.name, self.world.rng.choice(("there", "back", "both"))
        self.world.note(name, f"is cut off from the store ({way}) for {seconds:.1f} s")
        self.way.cut[name] = way
        self.world.after(seconds, self._connect, name)

    def _connect(self, name: str) -> None:
        self.world.note(name, "reaches the store")
        self.way.cut.pop(name, None)

    # Processes.

    def _start(self, slot: StoreMachine) -> None:
        slot.stopped, slot.lease = False, None
        slot.process = process = Process(slot.machine, f"trainer{self.slots.index(slot)}")
        process.on_end = partial(self._ended, slot)
        self.world.note(process, f"starts on {slot.machine}")
        process.run(lambda: Trainer(self, slot).run())

    def _ended(self, slot: StoreMachine, process: Process) -> None:
        if process.code == FINISHED and not self.finished:
            self.world.violated(f"{process} ended with 0 before the run was finished")
        if process.code != FINISHED:
            self.world.after(self.world.rng.uniform(1, 15), self._start, slot)

    # What must hold.

    def check_holders(self, newest: FollowedLease) -> None:
        """Called when the time of a lease was extended."""
        if not self.bucket.conditional:
            return
        leases = [slot.lease for slot in self.slots if slot.lease is not None]
        held = [lease for lease in leases if not lease.process.dead and lease.held]
        if len(held) > 1:
            names = " and ".join(str(lease.process) for lease in held)
            self.world.violated(f"{names} hold the lease at a time")

    def check_lost(self, process: Process, holder: str) -> None:
        """Called when a lease was reported as lost."""
        if self.bucket.conditional and self.head and self.head.holder == holder:
            self.world.violated(f"{process} holds the lease, and was told that it is lost")

    def check_gone(self, holder: str, prefix: str) -> None:
        """Called when a holder did not find the committed checkpoint: only one that has lost its
        lease may not, because the next one deletes what it no longer needs."""
        if self.bucket.conditional and self.head and self.head.holder == holder:
            self.world.violated(f"{prefix} is committed, and gone")

    def check_commit(self, name: str, content: dict[str, Any]) -> None:
        """Called when a commit was acknowledged."""
        if name not in content["commits"]:
            self.world.violated(f"{name} is acknowledged, and not in {content['commits']}")
        if self.bucket.conditional and name not in self.commits:
            self.world.violated(f"{name} is acknowledged, and was never in a head")

    def check_whole(self, path: Any, prefix: str) -> dict[str, Any] | None:
        """The manifest of a folder that was taken from the store."""
        manifest = whole(path)
        if manifest is None and prefix not in self.deleted:
            self.world.violated(f"{prefix} was taken, and is not whole")
        if manifest is not None:
            self._check_events(prefix, manifest)
        return manifest

    def _check_events(self, prefix: str, manifest: dict[str, Any]) -> None:
        objects, steps = self.bucket.objects, []
        for segment in manifest["segments"]:
            if segment not in objects:
                self.world.violated(f"{prefix} has its marker, and {segment} is not in the store")
                return
            steps += json.loads(objects[segment][0])
        if steps != list(range(manifest["position"])):
            self.world.violated(f"the events of {prefix} are of the steps {steps}")

    def _written(self, key: str, data: bytes, sender: str) -> None:
        folder, _, name = key.rpartition("/")
        if key == KEY:
            self._check_head(parse_head(data, "the store"), sender)
        elif name == MARKER:
            self.world.note(sender, f"wrote the marker of {folder}")
            self._check_folder(folder, data)

    def _check_folder(self, prefix: str, mark: bytes) -> None:
        """A folder that has its marker now."""
        if prefix in self.deleted:
            return
        objects = self.bucket.objects
        text = objects.get(f"{prefix}/manifest.json", (b"{}", None))[0]
        manifest = json.loads(text)
        right = sha256_of(text).encode() == mark
        for name, facts in manifest.get("files", {}).items():
            data = objects.get(f"{prefix}/{name}", (b"", None))[0]
            right = right and sha256_of(data) == facts["sha256"]
        if not right:
            self.world.violated(f"{prefix} has its marker, and not all its files")
        else:
            self._check_events(prefix, manifest)

    def _check_head(self, head: Head, sender: str) -> None:
        """The head that the store holds from now on."""
        before, self.head = self.head.content if self.head else {}, head
        position, state = head.content.get("position", 0), " released" * head.released
        self.world.note(sender, f"wrote {head.holder} beat {head.beat}{state}, position {position}")
        commits = head.content.get("commits", [])
        self.finished = self.finished or bool(head.content.get("finished"))
        if self.bucket.conditional:
            if head.content.get("position", 0) < before.get("position", 0):
                there = before["position"]
                self.world.violated(f"{sender} took the run back from {there} to {position}")
            if commits[: len(before.get("commits", []))] != before.get("commits", []):
                self.world.violated(f"{sender} dropped a commit of {before['commits']}: {commits}")
        self.commits += [name for name in commits if name not in self.commits]
        prefix = head.content.get("checkpoint")
        if prefix and prefix != before.get("checkpoint"):
            if (found := self.bucket.objects.get(f"{prefix}/{MARKER}")) is not None:
                self._check_folder(prefix, found[0])
            elif prefix not in self.deleted:
                self.world.violated(f"{prefix} is committed, and has no marker")

    def is_over(self) -> bool:
        return all(slot.process and slot.process.code == FINISHED for slot in self.slots)

    def run(self) -> None:
        """Raises Violation for what must not happen."""
        if self.world.rng.random() < 0.5:
            self.observer = Process(Machine(self.world, "observer"), "observer")
            self.observer.run(lambda: Observer(self, LocalDisk()).run())
        self.world.run(self.is_over, self.until)
        if not self.bucket.conditional:
            return
        content = self.head.content if self.head else {}
        if content.get("commits") != self.commits or content.get("position") != self.steps:
            raise Violation(f"the head ends as {content}, and {self.commits} were committed")
