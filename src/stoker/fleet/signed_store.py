"""What nodes of a run write for each other in a store that any program may reach.

Invariants: nothing is returned without a valid signature, made with the run's key for the name
under which it was stored; torch unpickles a part of it. Only those who can read the run directory
have that key. A state that is older than one this node knows is refused, and so is a message of
another round: each node puts a random number of its own into what a round is signed with. Once
closed, no thread enters the store.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from stoker.commit import UNABLE
from stoker.errors import StokerError
from stoker.host.plain_file import read_plain

KEY_BYTES = 32
MOST_BYTES = 1 << 20
"""A longer message is refused before it is hashed: the numbers of 10,000 nodes need half of it."""
_SIGNATURE_BYTES, _COUNT_BYTES = 32, 8
_POLL_S = 0.1
Answer = TypeVar("Answer")


class NodeLeft(Exception):
    """A node left the round before it published its part: another round may begin."""


def shared_key(path: Path, patience_s: float = 10.0) -> bytes:
    """The run's key, made by the first node that needs it. Raises StokerError if it is damaged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        make_key(path)
    with suppress(OSError):  # a copy may be readable by others; some mounts have no modes
        path.chmod(0o600)
    give_up = time.monotonic() + patience_s
    # Another node may have created the file and not written it yet, on a mount without links.
    while len(key := key_in(path)) != KEY_BYTES:
        if time.monotonic() > give_up:
            raise StokerError(f"{path} is damaged: remove it and start on every node again")
        time.sleep(_POLL_S)
    return key


def key_in(path: Path) -> bytes:
    """What a file of a key holds; nothing where it is longer than a key, or no plain file."""
    with suppress(ValueError):
        return read_plain(path, KEY_BYTES)
    return b""


def make_key(path: Path) -> None:
    """Make a key under this name unless there is one. A node that is killed leaves no half of it,
    on a mount with links."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        write_new(draft, secrets.token_bytes(KEY_BYTES))
        with suppress(FileExistsError):
            os.link(draft, path)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
        with suppress(FileExistsError):
            write_new(path, secrets.token_bytes(KEY_BYTES))
    finally:
        draft.unlink(missing_ok=True)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that this user alone can read. Raises FileExistsError where the name exists."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, data)
        os.fsync(file)
    finally:
        os.close(file)


def refused(reason: str) -> Exception:
    """The exception of torch's rendezvous for content that no node of this run can have written."""
    from torch.distributed.elastic.rendezvous.api import RendezvousStateError

    return RendezvousStateError(reason)


def signed(key: bytes, name: str, content: bytes) -> bytes:
    """The content with a signature that is valid under this name alone."""
    return hmac.digest(key, f"{len(name)} {name} ".encode() + content, hashlib.sha256) + content


def verified(key: bytes, name: str, message: bytes) -> bytes:
    """The content of a message. Raises RendezvousStateError without a valid signature."""
    content = message[_SIGNATURE_BYTES:]
    if len(message) > MOST_BYTES or not hmac.compare_digest(signed(key, name, content), message):
        raise refused(f"no node of this run wrote '{name}' of the rendezvous")
    return content


class StateStore(Protocol):
    """Where torch's rendezvous keeps its state: bytes, and a token that replaces them."""

    def get_state(self) -> tuple[bytes, Any] | None: ...
    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None: ...


class SignedStore:
    """A state store that signs and numbers what it writes. Reading raises RendezvousStateError for
    a state that no node of this run wrote, or that is older than one which was read before, and
    RendezvousClosedError once the store is closed."""

    name = "signed"

    def __init__(self, inner: StateStore, key: bytes) -> None:
        self._inner, self._key, self._newest = inner, key, 0
        self._lock, self._closed = threading.Lock(), False
        self.answered_at = time.monotonic()

    def get_state(self) -> tuple[bytes, Any] | None:
        with self._entered():
            answer = self._ask(self._inner.get_state)
            state = self._state_of(answer and answer[0])
        return None if answer is None else (state, answer[1])

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        with self._entered():
            count = (self._newest + 1).to_bytes(_COUNT_BYTES)
            message = signed(self._key, "state", count + state)
            answer = self._ask(lambda: self._inner.set_state(message, token))
            state = self._state_of(answer and answer[0])
        return None if answer is None else (state, answer[1], answer[2])

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

    def _ask(self, function: Callable[[], Answer]) -> Answer:
        from torch.distributed.elastic.rendezvous.api import RendezvousStateError

        try:
            return function()
        except (RendezvousStateError, ValueError) as error:  # torch decodes what it reads
            raise refused("no node of this run wrote 'state' of the rendezvous") from error

    def _state_of(self, message: bytes | None) -> bytes:
        content = verified(self._key, "state", message) if message is not None else b""
        count = int.from_bytes(content[:_COUNT_BYTES])
        if count < self._newest:
            raise refused("the state of the rendezvous was removed, or is an older one")
        self._newest = count
        return content[_COUNT_BYTES:]


class RoundMessages:
    """The signed messages of one round. All methods raise RendezvousStateError for a message that
    no node wrote in this round, and what the store raises."""

    def __init__(self, store: Any, key: bytes, node: int, nodes: int) -> None:
        self._store, self._key, self._node, self._nodes = store, key, node, nodes
        self.round = ""

    def key_for(self, purpose: str) -> bytes:
        """A key for one purpose, which the nodes of this round alone have once they agreed."""
        return hmac.digest(self._key, purpose.encode(), hashlib.sha256)

    def agree(self, listens_at: str | None, announce: Callable[[str], None]) -> str:
        """The address of rank 0, which its node passes in. From here on, messages are signed with a
        key that the nodes of this round alone have: a random number of each is part of it. Rank 0's
        is also the name of the round, and announced before any node can begin. Raises NodeLeft
        where rank 0 counts other nodes: one was removed while they read who is there."""
        number = secrets.token_hex(16)
        self.put(f"number{self._node}", number)
        if listens_at is not None:
            numbers = [self.get(f"number{node}") for node in range(self._nodes)]
            announce(number)
            self.put("door", json.dumps([listens_at, *numbers]))
        address, *numbers = json.loads(text := self.get("door"))
        if len(numbers) != self._nodes or self._node >= self._nodes:
            raise NodeLeft
        if numbers[self._node] != number:
            raise refused("'door' of the rendezvous is that of another round")
        self._key, self.round = self.key_for(text), str(numbers[0])
        return str(address)

    def wait_for_all(self) -> None:
        """Return once every node has agreed: ranks that begin without the others wait for them."""
        self.put(f"ready{self._node}", "")
        for node in range(self._nodes):
            self.get(f"ready{node}")

    def put(self, name: str, text: str) -> None:
        self._store.set(name, signed(self._key, name, text.encode()))

    def get(self, name: str) -> str:
        return verified(self._key, name, self._store.get(name)).decode()

    def has(self, name: str) -> bool:
        return bool(self._store.check([name]))
