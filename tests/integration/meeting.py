"""Whether a node waits at a rendezvous."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore


def has_state(port: int) -> bool:
    """Whether a first node has put its name into the rendezvous."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=5))
        return bool(store.check(["torch.rendezvous.stoker"]))
    except (OSError, RuntimeError):
        return False
