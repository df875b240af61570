"""A model of a process that trains a run in an object store, and of one that looks at the store.

A trainer takes the lease, reads the newest committed checkpoint, makes steps and saves: it uploads
a folder, its event segments before the marker, then commits the folder's name. A thread renews the
lease. The lease, the folders and the hash check are the product's own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from simulation.local_disk import LocalDisk, LocalPath
from simulation.objects import SimulatedObjects
from simulation.standins import Event, Thread
from simulation.world import Process, current, sleep
from stoker.commit import sha256_of
from stoker.errors import FINISHED, INTERRUPTED, StokerError
from stoker.stores import commit_folder
from stoker.stores.head import Head, read_head
from stoker.stores.lease import HeadLease, LeaseHeld, LeaseLost
from stoker.stores.objects import Missing, StoreError, Version
from stoker.survive.manifest import MARKER, check_hashes

if TYPE_CHECKING:
    from simulation.store import StoreMachine, StoreSchedule

SAVE_TRIES = 3
KEPT = 2
"""Checkpoints that a trainer leaves in the store."""


class FollowedLease(HeadLease):
    """A lease that the schedule looks at whenever its time is extended."""

    process: Process
    schedule: StoreSchedule

    def _adopt(self, head: Head, version: Version) -> None:
        super()._adopt(head, version)
        self.schedule.check_holders(self)


def prefix_of(holder: str, position: int, save: int) -> str:
    """Where a checkpoint is in the store. `save` counts the saves of a holder."""
    return f"checkpoints/{position:09d}-{save}-{holder}"


class Trainer:
    """One start of a trainer on a machine."""

    def __init__(self, schedule: StoreSchedule, slot: StoreMachine) -> None:
        self.schedule, self.slot, self.world = schedule, slot, schedule.world
        self.process = current()
        self.objects: Any = SimulatedObjects(schedule.bucket, schedule.way)
        machine = slot.machine
        self.lease = FollowedLease(
            self.objects,
            ttl_s=slot.ttl_s,
            host=machine.name,
            clock=machine.clock,
            sleep=sleep,
        )
        self.lease.process, self.lease.schedule = self.process, schedule
        slot.lease = self.lease
        self.id, self.saves = "", 0

    def run(self) -> int:
        """Train until the run is finished or this process is told to stop; the exit code."""
        while not self.slot.stopped:
            try:
                content = self.lease.acquire(
                    self.schedule.patience_s, unlocked=not self.objects.conditional
                )
                self.world.note(self.process, f"has the lease {self.lease.holder}")
                code = self._attempt(content)
            except LeaseLost as error:
                self.world.note(self.process, str(error))
                self.schedule.check_lost(self.process, self.id)
            except (StoreError, LeaseHeld) as error:
                self.world.note(self.process, str(error))
                if self.world.rng.random() < 0.5:
                    self.lease.release()
                if self._is_finished():
                    return FINISHED
            else:
                self.lease.release()
                return code
            sleep(self.world.rng.random() * 5)
        return INTERRUPTED

    def _is_finished(self) -> bool:
        try:
            head = read_head(self.objects)
        except StoreError:
            return False
        return head is not None and bool(head.content.get("finished"))

    def _attempt(self, content: dict[str, Any]) -> int:
        """Train with the lease. Raises LeaseLost, and StoreError where the store fails for long."""
        if content.get("finished"):
            return FINISHED
        self.id = self.lease.holder
        self.lost, done = Event(), Event()
        Thread(self._renew, (self.id, done)).start()
        try:
            return self._train(content)
        finally:
            done.set()

    def _renew(self, holder: str, done: Event) -> None:
        while not done.wait(self.slot.ttl_s * self.schedule.renews) and self.lease.holder == holder:
            try:
                self.lease.renew()
            except LeaseLost as error:
                self.world.note(self.process, f"renewal: {error}")
                if not done.is_set():
                    self.schedule.check_lost(self.process, holder)
                self.lost.set()
                return
            except StoreError as error:
                self.world.note(self.process, f"renewal: {error}")

    def _train(self, content: dict[str, Any]) -> int:
        self.content = content
        position, last = self._resume(content), self.schedule.steps
        while position < last and not self.slot.stopped:
            sleep(self.schedule.step_s)
            self._require()
            position += 1
            if position % self.schedule.save_every == 0 and position < last:
                self._save(position)
        saved = self.content.get("position", 0) == position or self._save(position)
        if position == last and saved:
            return FINISHED
        if self.slot.stopped:
            return INTERRUPTED
        raise StoreError("the last checkpoint could not be saved")

    def _require(self) -> None:
        """Wait until the lease is held. Raises LeaseLost."""
        while not self.lease.held:
            if self.lost.is_set():
                raise LeaseLost("found out by a renewal")
            sleep(1.0)

    def _resume(self, content: dict[str, Any]) -> int:
        """Read the committed checkpoint; its position."""
        if "checkpoint" not in content:
            return 0
        prefix = content["checkpoint"]
        path: Any = LocalPath(self.slot.disk, f"read/{prefix.rpartition('/')[2]}")
        if not path.exists():
            try:
                commit_folder.download_folder(self.objects, prefix, path, MARKER)
            except Missing:
                self.schedule.check_gone(self.id, prefix)
                raise
        manifest = self.schedule.check_whole(path, prefix)
        if manifest and manifest["position"] != content["position"]:
            self.world.violated(f"{prefix} is of {manifest['position']}, not {content['position']}")
        return int(content["position"])

    def _save(self, position: int) -> bool:
        """Upload a checkpoint and commit it; False where the store does not take it. Raises
        LeaseLost."""
        self.saves += 1
        begin = self.content.get("position", 0)
        steps = json.dumps(list(range(begin, position))).encode()
        segment = f"events/{self.id}/{self.saves:04d}"
        segments = [*self.content.get("segments", []), segment]
        folder: Any = self._write(position, segments)
        prefix = prefix_of(self.id, position, self.saves)
        for _ in range(SAVE_TRIES):
            try:
                commit_folder.upload_folder(
                    self.objects,
                    prefix,
                    folder,
                    MARKER,
                    lambda: self.objects.write(segment, steps),
                )
                self._commit(position, prefix, segments)
                return True
            except StoreError as error:
                self.world.note(self.process, f"saving: {error}")
                self._require()
        return False

    def _write(self, position: int, segments: list[str]) -> LocalPath:
        """A checkpoint on the machine's own disk."""
        disk: LocalDisk = self.slot.disk
        folder = LocalPath(disk, f"saved/{self.id}/{position:09d}-{self.saves}")
        folder.mkdir()
        facts = {}
        for name in ("weights.safetensors", "state.pt"):
            data = f"{name} {self.process} {self.id} {self.saves}".encode() * 3
            (folder / name).write_bytes(data)
            facts[name] = {"bytes": len(data), "sha256": sha256_of(data)}
        manifest = {"step": position, "position": position, "files": facts, "segments": segments}
        text = json.dumps(manifest).encode()
        (folder / "manifest.json").write_bytes(text)
        (folder / MARKER).write_bytes(sha256_of(text).encode())
        return folder

    def _commit(self, position: int, prefix: str, segments: list[str]) -> None:
        def change(content: dict[str, Any]) -> dict[str, Any]:
            if content.get("checkpoint") == prefix:
                return content
            return {
                "position": position,
                "checkpoint": prefix,
                "segments": segments,
                "commits": [*content.get("commits", []), f"{self.id}-{self.saves}"],
                "kept": [*content.get("kept", []), prefix][-KEPT:],
                "finished": position == self.schedule.steps,
            }

        before = self.content.get("kept", [])
        self.content = self.lease.commit(change)
        self.schedule.check_commit(f"{self.id}-{self.saves}", self.content)
        if self.schedule.deletes:
            for dropped in [name for name in before if name not in self.content["kept"]]:
                self.schedule.deleted.add(dropped)
                commit_folder.delete_folder(self.objects, dropped, MARKER)


class Observer:
    """Looks at the store now and then, without the lease: whatever folder it takes is whole."""

    def __init__(self, schedule: StoreSchedule, disk: LocalDisk) -> None:
        self.schedule, self.world, self.disk = schedule, schedule.world, disk
        self.objects: Any = SimulatedObjects(schedule.bucket, schedule.way)

    def run(self) -> int:
        for look in range(self.world.rng.randint(2, 6)):
            sleep(self.world.rng.random() * 40)
            try:
                self._look(look)
            except StoreError as error:
                self.world.note(current(), str(error))
        return FINISHED

    def _look(self, look: int) -> None:
        keys = [found.key for found in self.objects.list("checkpoints")]
        prefixes = sorted({key.rpartition("/")[0] for key in keys})
        if not prefixes:
            return
        prefix = self.world.rng.choice(prefixes[-3:])
        path: Any = LocalPath(self.disk, f"look{look}/{prefix.rpartition('/')[2]}")
        try:
            commit_folder.download_folder(self.objects, prefix, path, MARKER)
        except Missing:
            return
        self.world.note(current(), f"takes {prefix}")
        self.schedule.check_whole(path, prefix)


def whole(path: Any) -> dict[str, Any] | None:
    """The manifest of a folder with every hash right, by the product's own check; None where it is
    not whole."""
    try:
        return check_hashes(path)
    except StokerError:
        return None
