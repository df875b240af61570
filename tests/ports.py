"""A port that nobody has, and that the system hands to nobody by itself."""

from __future__ import annotations

import random
import socket
from pathlib import Path


def lowest_handed_out() -> int:
    """Where the ports begin that the system picks from for whoever asks for any."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32768


def free_port() -> int:
    """A port on loopback. It is outside of what the system picks from: between here and its use
    nobody gets it by chance."""
    last = lowest_handed_out()
    # Where all are handed out, nobody is safe from chance.
    first = min(20_000, last - 5000) if last > 10_000 else last
    for _ in range(1000):
        port = random.randrange(first, last if last > first else 60_000)
        with socket.socket() as door:
            try:
                door.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port on loopback")
