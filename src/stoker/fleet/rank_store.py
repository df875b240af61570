"""The store through which the ranks of a round learn each other's addresses, signed.

Invariants: no address is returned without a valid signature, made with the key that the nodes of
this round agreed on. The key comes from the launcher through the environment, which other users
cannot read, and is removed from there: no process that a rank starts has it.
"""

from __future__ import annotations

import os
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous.api import RendezvousStateError

from stoker.errors import Interrupted
from stoker.fleet.launcher import ROUND_KEY
from stoker.fleet.signed_store import signed, verified


class SignedRankStore(Store):
    """A store that signs what gloo writes and refuses what other programs wrote. `get` raises
    Interrupted: the node ends, to be started again."""

    def __init__(self, inner: Any, key: bytes) -> None:
        super().__init__()
        self._inner, self._key = inner, key

    def set(self, key: str, value: str | bytes) -> None:
        content = value.encode() if isinstance(value, str) else value
        self._inner.set(key, signed(self._key, key, content))

    def get(self, key: str) -> bytes:
        try:
            return verified(self._key, key, self._inner.get(key))
        except RendezvousStateError as error:
            raise Interrupted(
                "no rank of this run wrote the addresses of the ranks: choose a link that only "
                "your nodes reach, and start the same command on every node again"
            ) from error

    def check(self, keys: list[str]) -> bool:
        return bool(self._inner.check(keys))

    def wait(self, keys: list[str], *timeout: Any) -> None:
        self._inner.wait(keys, *timeout)

    def delete_key(self, key: str) -> bool:
        return bool(self._inner.delete_key(key))

    def set_timeout(self, timeout: Any) -> None:
        self._inner.set_timeout(timeout)


_KEPT: list[SignedRankStore] = []
"""Torch keeps no reference to the Python part of a store."""


def signed_for_ranks(store: Any) -> Any:
    """The store, signed with the key of this round; the store itself if there is no key."""
    if not (key := os.environ.pop(ROUND_KEY, "")):
        return store
    _KEPT.append(SignedRankStore(store, bytes.fromhex(key)))
    return _KEPT[-1]
