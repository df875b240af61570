"""The state of a rendezvous, signed: what torch reads from its store, it unpickles.

Invariants: nothing is handed on that does not carry a signature made with the run's own key, and
only those who can read the run directory have that. Once closed, no thread enters the store.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from stoker.errors import StokerError

KEY_BYTES = 32
_POLL_S = 0.1


def shared_key(path: Path, patience_s: float = 10.0) -> bytes:
    """The run's key, made by whichever node comes first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, secrets.token_bytes(KEY_BYTES))
            os.fsync(file)
        finally:
            os.close(file)
    give_up = time.monotonic() + patience_s
    # The first node may be between making the file and filling it.
    while len(key := path.read_bytes()) != KEY_BYTES:
        if time.monotonic() > give_up:
            raise StokerError(f"{path} is damaged: remove it and start on every node again")
        time.sleep(_POLL_S)
    return key


class StateStore(Protocol):
    """What torch's rendezvous keeps its state in: bytes, and a token to replace them by."""

    def get_state(self) -> tuple[bytes, Any] | None: ...
    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None: ...


class SignedStore:
    """A state store that lets nothing through that was not signed with the run's key."""

    name = "signed"

    def __init__(self, inner: StateStore, key: bytes) -> None:
        self._inner, self._key = inner, key
        self._door, self._closed = threading.Lock(), False
        self.heard_at = time.monotonic()
        """When the store last answered."""

    def get_state(self) -> tuple[bytes, Any] | None:
        with self._inside():
            found = self._inner.get_state()
        self.heard_at = time.monotonic()
        return None if found is None else (self._opened(found[0]), found[1])

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        with self._inside():
            found = self._inner.set_state(self._signature(state) + state, token)
        self.heard_at = time.monotonic()
        return None if found is None else (self._opened(found[0]), found[1], found[2])

    def close(self, patience_s: float = 2.0) -> None:
        """Let no thread in any more, and wait for the one that is inside."""
        self._closed = True
        if self._door.acquire(timeout=patience_s):
            self._door.release()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with self._door:
            if self._closed:
                from torch.distributed.elastic.rendezvous.api import RendezvousClosedError

                raise RendezvousClosedError("this node has left the rendezvous")
            yield

    def _signature(self, state: bytes) -> bytes:
        return hmac.digest(self._key, state, hashlib.sha256)

    def _opened(self, signed: bytes) -> bytes:
        size = hashlib.sha256().digest_size
        signature, state = signed[:size], signed[size:]
        if not hmac.compare_digest(signature, self._signature(state)):
            from torch.distributed.elastic.rendezvous.api import RendezvousStateError

            raise RendezvousStateError("no node of this run wrote what the rendezvous holds")
        return state
