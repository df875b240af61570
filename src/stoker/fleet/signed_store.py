"""The signed state of a rendezvous: torch unpickles what it reads from its store.

Invariants: no state is returned without a valid signature made with the run's key, and only those
who can read the run directory have that key. Once closed, no thread enters the store.
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
    """The run's key, made by the first node that needs it. Raises StokerError if it is damaged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, secrets.token_bytes(KEY_BYTES))
            os.fsync(file)
        finally:
            os.close(file)
    give_up = time.monotonic() + patience_s
    # Another node may have created the file and not written it yet.
    while len(key := path.read_bytes()) != KEY_BYTES:
        if time.monotonic() > give_up:
            raise StokerError(f"{path} is damaged: remove it and start on every node again")
        time.sleep(_POLL_S)
    return key


class StateStore(Protocol):
    """Where torch's rendezvous keeps its state: bytes, and a token that replaces them."""

    def get_state(self) -> tuple[bytes, Any] | None: ...
    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None: ...


class SignedStore:
    """A state store that signs what it writes. Reading raises RendezvousStateError for a state
    without a valid signature, and RendezvousClosedError once the store is closed."""

    name = "signed"

    def __init__(self, inner: StateStore, key: bytes) -> None:
        self._inner, self._key = inner, key
        self._lock, self._closed = threading.Lock(), False
        self.answered_at = time.monotonic()

    def get_state(self) -> tuple[bytes, Any] | None:
        with self._entered():
            answer = self._inner.get_state()
        return None if answer is None else (self._verified(answer[0]), answer[1])

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        with self._entered():
            answer = self._inner.set_state(self._signature(state) + state, token)
        return None if answer is None else (self._verified(answer[0]), answer[1], answer[2])

    def close(self, patience_s: float = 2.0) -> None:
        """Let no more threads enter, and wait for the one inside."""
        self._closed = True
        if self._lock.acquire(timeout=patience_s):
            self._lock.release()

    @contextmanager
    def _entered(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                from torch.distributed.elastic.rendezvous.api import RendezvousClosedError

                raise RendezvousClosedError("this node has left the rendezvous")
            yield
        self.answered_at = time.monotonic()

    def _signature(self, state: bytes) -> bytes:
        return hmac.digest(self._key, state, hashlib.sha256)

    def _verified(self, signed: bytes) -> bytes:
        size = hashlib.sha256().digest_size
        signature, state = signed[:size], signed[size:]
        if not hmac.compare_digest(signature, self._signature(state)):
            from torch.distributed.elastic.rendezvous.api import RendezvousStateError

            raise RendezvousStateError("no node of this run wrote the state of the rendezvous")
        return state
