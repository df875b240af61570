"""Keeps a run in an object store while it is trained in a folder of this machine.

Invariants: a checkpoint counts in the store only once its files, its marker and the events of all
ranks up to its step are there: then one conditional write of the head names it. Only the process
that holds the lease makes that write. Training does not wait for the store: it goes on while the
store does not answer, and ends where another process has taken the run over. An attempt that ends
waits until everything is in the store, or says what is not.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.errors import StokerError
from stoker.faults import reach
from stoker.stores.client import StoreClient
from stoker.stores.commit_folder import upload_folder
from stoker.stores.head import Head, read_head
from stoker.stores.lease import HeadLease, LeaseHeld, LeaseLost
from stoker.stores.location import Location
from stoker.stores.objects import Objects
from stoker.stores.patience import Stopped
from stoker.survive.manifest import MARKER, manifest_of, names_in, pointer
from stoker.survive.remote.folder_mark import (
    FolderMark,
    drop_foreign,
    drop_unrecorded,
    earlier_holder,
    note_holder,
    read_mark,
    write_mark,
)
from stoker.survive.remote.held_folder import held_folder
from stoker.survive.remote.litter import Litter
from stoker.survive.remote.peers import await_events, take_proposals
from stoker.survive.remote.pull import pull
from stoker.survive.remote.records import (
    GROWING,
    Content,
    Segment,
    keep_pointers,
    plain_files,
    push_files,
    push_segments,
    segments,
)
from stoker.text import one_line, shown

LEASE_S, LEASE_VARIABLE = 60.0, "STOKER_LEASE_S"
"""Seconds after which a lease ends that is not renewed; the variable is for tests."""
END_S, END_VARIABLE = 600.0, "STOKER_UPLOAD_S"
"""How long the end of an attempt waits for the store."""
FAILED_END_S = 30.0
"""The same after a failure."""
LOOK_S = 1.0
"""How often the folder is looked at."""
UPLOAD_S, PEER_UPLOAD_S = 30.0, 5.0
"""How often new events are uploaded: where there is no new checkpoint, and by the machines that do
not lead, as a checkpoint waits for them."""
PEERS_S = 120.0
"""How long a checkpoint waits for the events of other machines."""


def seconds_of(variable: str, usual: float) -> float:
    return float(os.environ.get(variable) or usual)


def lease_seconds() -> float:
    return seconds_of(LEASE_VARIABLE, LEASE_S)


class RunMirror:
    """The copy in a store of the run in one folder. Rank 0 leads: it holds the lease and commits;
    the first rank of every other machine adds the events of its machine."""

    def __init__(
        self,
        run: Path,
        location: Location,
        *,
        leads: bool,
        report: Callable[[str], None] = lambda message: None,
        objects: tuple[Objects, Objects] | None = None,
    ) -> None:
        """`objects` are those of the run and of its lease, for tests [of the location]."""
        self.run, self.location, self._leads, self._report = run, location, leads, report
        self._stopped = threading.Event()
        self._objects, leased = objects or (
            StoreClient(location, stopped=self._stopped, report=report),
            StoreClient(location, patience_s=lease_seconds() / 3, stopped=self._stopped),
        )
        host = f"{socket.gethostname()}, process {os.getpid()}"
        self._lease = HeadLease(leased, ttl_s=lease_seconds(), host=host)
        self._content, self._litter = Content(), Litter()
        self._chains: dict[str, list[Segment]] | None = None
        """For each growing file the segments that are in the store."""
        self._attempt, self._world, self._here = 0, 1, range(1)
        self._at_hand: set[str] = set()
        """Checkpoints that this folder has had since the mirror was opened."""
        self._earlier: set[str] = set()
        """Of these, the ones of an earlier attempt: their events are complete."""
        self._damaged: set[str] = set()
        self._proposals: list[str] = []
        self._has_pushed = False
        self._copying, self._ending = threading.Lock(), threading.Event()
        self._failed = self._released = False
        self._threads: list[threading.Thread] = []
        self._uploaded_at = 0.0
        self._trouble = ""
        self.lost = ""
        """Why this process may no longer train the run; empty while it may."""

    def open(self, patience_s: float, *, refuses: bool = True) -> None:
        """Take the lease, if this process leads, and bring the folder up to date. Waits so long for
        the lease; with `refuses` only until its holder shows that it is alive. Raises LeaseHeld
        where another process trains the run, StoreError where the store fails."""
        if not self._leads:
            drop_unrecorded(self.run)
            self.refresh()
            return
        try:
            content = self._acquire(patience_s, refuses)
            note_holder(self.run, self._lease.holder)
            self._start("stoker-store-lease", self._keep_lease)
            self._catch_up(content)
        except BaseException:
            self.close(failed=True)
            raise

    def _catch_up(self, content: dict[str, Any]) -> None:
        """Bring the folder up to what the store has. Raises StoreError, OSError."""
        self._content = Content.of(content, self._objects.location)
        self._litter.find(self._objects)
        mark = read_mark(self.run)
        own = mark.is_newest(self._content)
        drop_unrecorded(self.run)
        drop_foreign(self.run, self._content, ahead=own and mark.alone)
        self._damaged = pull(self._objects, self.run, self._content, checkpoints=True, own=own)
        self._proposals = take_proposals(self._objects, self.run)
        self._at_hand = set(names_in(self.run / "checkpoints"))
        self._earlier = set(self._at_hand)

    def _acquire(self, patience_s: float, refuses: bool) -> dict[str, Any]:
        """Take the lease. A holder that renews it while this process waits is alive."""
        give_up, earlier = time.monotonic() + patience_s, earlier_holder(self.run)
        first: Head | None = None
        while True:
            left_s = give_up - time.monotonic()
            try:
                return self._lease.acquire(max(min(left_s, LOOK_S), 0.0), earlier=earlier)
            except LeaseHeld as error:
                head = error.head
                is_same = first is not None and first.holder == head.holder
                is_alive = is_same and first != head
                if (is_alive and refuses) or left_s <= 0:
                    raise
                if not is_same and patience_s:
                    self._report(
                        f"{self.location} is trained on {shown(head.host)}, or was until lately: "
                        "waiting to learn which"
                    )
                first = first if is_same else head

    def begin_attempt(self, number: int, world: int, here: range) -> None:
        """Record that an attempt begins, and upload what it leaves in this folder from now on.
        `here`: the ranks of this machine. On several machines the store then has the checkpoints
        that this folder has. Raises LeaseLost, StoreError, OSError."""
        with self._copying:
            self._world, self._here = world, here
            if self._leads:
                self._commit_files(attempt=number)
                run_id, alone = self._content.run_id, world == len(here)
                write_mark(self.run, FolderMark(run_id, number, number, alone, sent=False))
                self._objects.delete(self._proposals)
                self._proposals = []
            self._attempt = number
            if self._leads and world > len(here):
                for _ in self._pending():
                    self.copy(everything=True)
        self._start("stoker-store-copy", self._keep_copying)

    def share_files(self) -> None:
        """Have the small files of this folder in the store, for the other machines. Raises
        LeaseLost, StoreError, OSError."""
        if self._leads:
            with self._copying:
                self._commit_files()

    def refresh(self) -> None:
        """Bring the folder of a machine that does not lead up to date. Raises StoreError."""
        if self._leads:
            return
        with self._copying:
            head = read_head(self._objects)
            self._content = Content.of(head.content if head else {}, self._objects.location)
            drop_foreign(self.run, self._content)
            pull(self._objects, self.run, self._content, checkpoints=True)
            write_mark(self.run, FolderMark(self._content.run_id, self._content.attempt))

    def _start(self, name: str, work: Callable[[], None]) -> None:
        if not any(thread.name == name for thread in self._threads):
            thread = threading.Thread(target=work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _keep_lease(self) -> None:
        """Renew the lease until the end."""
        while not self._stopped.wait(lease_seconds() / 4):
            try:
                self._lease.renew()
            except LeaseLost as error:
                self.lost = "" if self._released else str(error)
                return
            except StokerError as error:
                self._report(f"the lease of the run was not renewed: {error}")
            except Stopped:
                return

    def _keep_copying(self) -> None:
        with suppress(Stopped):
            while not self._ending.wait(LOOK_S) and not self.lost:
                self._copy_or_note()

    def _copy_or_note(self, *, everything: bool = False) -> None:
        """Copy, and keep in mind what went wrong. Raises Stopped."""
        try:
            with self._copying:
                self.copy(everything=everything)
                if everything and self._pending():
                    self.copy(everything=True)
            self._trouble = ""
        except LeaseLost as error:
            self.lost = self.lost or str(error)
        except (StokerError, OSError, ValueError) as error:
            self._trouble = one_line(str(error))

    def copy(self, *, everything: bool = False) -> None:
        """Upload what is new. Raises LeaseLost, StoreError, OSError."""
        pending = self._pending()
        every_s = UPLOAD_S if self._leads else PEER_UPLOAD_S
        if not (pending or everything or time.monotonic() - self._uploaded_at > every_s):
            return
        self._push_segments()
        self._uploaded_at = time.monotonic()
        if not self._leads:
            return
        reach("store:events")
        if pending:
            self._push_checkpoint(pending[0])
        else:
            self._commit_files()

    def _pending(self) -> list[str]:
        """The checkpoints here that the store does not have: the newest one, then the best one."""
        if not self._leads:
            return []
        names = [name for name in names_in(self.run / "checkpoints") if self._is_here(name)]
        self._at_hand |= set(names)
        chosen = dict.fromkeys([*names[:1], pointer(self.run / "best")])
        return [n for n in chosen if n in names and not self._is_there(n)]

    def _is_here(self, name: str) -> bool:
        return (self.run / "checkpoints" / name / MARKER).is_file()

    def _is_there(self, name: str) -> bool:
        return name in self._content.checkpoints and name not in self._damaged

    def _push_segments(self) -> None:
        """Upload the new lines of the growing files that this machine writes."""
        if self._chains is None:
            self._chains = segments(self._objects)
        for name, path in plain_files(self.run):
            chain = self._chains.setdefault(name, []) if GROWING.fullmatch(name) else None
            if chain is None or self._is_later(name):
                continue
            if path.stat().st_size > (chain[-1].end if chain else 0):
                push_segments(self._objects, name, path, chain)

    def _is_later(self, name: str) -> bool:
        """Whether a file is of an attempt that is not recorded yet: its number may be another
        machine's."""
        return name.startswith("attempts/") and int(name.split("/")[1]) > self._attempt

    def _push_checkpoint(self, name: str) -> None:
        """Upload a checkpoint, and name it in the head. Raises LeaseLost, StoreError, OSError."""
        with held_folder(self.run, self.run / "checkpoints" / name) as folder:
            manifest = manifest_of(folder)
            if manifest is None:
                return  # it was pruned, or is not complete
            prefix = f"checkpoints/{name}.{secrets.token_hex(8)}"
            self._litter.add_folder(prefix)
            peers = set() if name in self._earlier else set(range(self._world)) - set(self._here)

            def await_peers() -> None:
                await_events(
                    self._objects, self._attempt, peers, manifest["step"], self._has_patience
                )

            upload_folder(self._objects, prefix, folder, MARKER, await_peers)
        reach("store:marker")
        self._commit_files(added={name: prefix})
        self._damaged.discard(name)
        self._has_pushed = True
        reach("store:committed")

    def _has_patience(self, waited_s: float) -> bool:
        """Whether to wait on for the events of other machines."""
        return waited_s < PEERS_S and not (self.lost or self._failed)

    def _commit_files(self, *, attempt: int = 0, added: dict[str, str] | None = None) -> None:
        """Have the head tell of the small files as they are, of an attempt that begins, of a
        checkpoint that was added, and not of those that are gone. Raises LeaseLost, StoreError,
        OSError."""
        before = self._content
        files = push_files(self._objects, self.run, before.files)
        reach("store:files")
        there = {**before.checkpoints, **(added or {})}
        gone = {name for name in there if self._is_gone(name)}
        gone -= keep_pointers(files, before.files, there, gone) - self._damaged
        kept = {name: prefix for name, prefix in there.items() if name not in gone}
        run_id = before.run_id or secrets.token_hex(8)
        after = Content(run_id, attempt or before.attempt, files, kept)
        if after == before:
            return
        self._litter.add(before)
        self._litter.add(after)
        self._content = Content.of(
            self._lease.commit(lambda data: after.data()), self._objects.location
        )
        reach("store:pruned")
        self._litter.clear(self._objects, self._content)

    def _is_gone(self, name: str) -> bool:
        """Whether a checkpoint of the store is not one of the run any more. A machine that begins
        does not have all of them."""
        if name in self._damaged:
            return not self._is_here(name)
        return (self._has_pushed or name in self._at_hand) and not self._is_here(name)

    def close(self, *, failed: bool = False) -> None:
        """Upload what is left and give the run up. Raises StokerError where the store did not take
        everything: it is still in the folder of this machine. After a failure there is no time for
        that, and nothing is raised."""
        self._failed = failed
        self._ending.set()
        wait_s = FAILED_END_S if failed else seconds_of(END_VARIABLE, END_S)
        out_of_time = threading.Timer(wait_s, self._stopped.set)
        out_of_time.daemon = True
        out_of_time.start()
        try:
            self._copy_rest(once=failed)
        except Stopped:
            self._trouble = self._trouble or f"it has not answered for {wait_s:.0f} s"
        finally:
            out_of_time.cancel()
            if self._leads and not self.lost:
                self._released = True
                self._lease.release()
            self._stopped.set()
        if self._trouble and not self.lost:
            message = (
                f"not everything of the run is in {self.location} ({self._trouble}); it is "
                f"in {self.run}: the same command on this machine uploads the rest"
            )
            if not failed:
                raise StokerError(message)
            self._report(message)

    def _copy_rest(self, *, once: bool) -> None:
        """Copy until everything is in the store. Raises Stopped."""
        while self._attempt and not self.lost:
            self._copy_or_note(everything=True)
            if not self._trouble:
                if self._leads and not self.lost:
                    write_mark(self.run, replace(read_mark(self.run), sent=True))
                return
            if once:
                return
            if self._stopped.wait(LOOK_S):
                raise Stopped

    def send_rest(self) -> None:
        """Upload what an attempt has left in this folder, without beginning another. The mirror
        was opened, and is closed after it."""
        self._attempt = self._content.attempt
