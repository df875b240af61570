"""Which network interface carried the bytes: the kernel's counters, and NCCL's own log.

Invariants: where nothing is counted or logged, the answer is empty or None, never zero. Counters
are for the whole machine: they include the traffic of other programs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stoker.host import proc
from stoker.host.counters import kernel_text


def sent_bytes(path: str = "/proc/net/dev") -> dict[str, int]:
    """Bytes sent so far, by interface; empty where the kernel does not count them."""
    return {name: sent for name, (_, sent) in proc.interface_bytes(kernel_text(path)).items()}


def busiest_interface(sent: Mapping[str, int]) -> tuple[str, int] | None:
    """The interface that sent most, and its bytes; None if none sent anything. A bridge or tunnel
    counts the bytes of the card below it a second time: of equals, the first by name is taken."""
    name = max(sorted(sent), key=sent.__getitem__, default=None)
    return None if name is None or sent[name] <= 0 else (name, sent[name])


def card_mbit(interface: str, folder: str = "/sys/class/net") -> int | None:
    """The rate that a card negotiated with its port; None if unknown, as for many virtual cards."""
    if interface in ("", ".", "..") or "/" in interface:
        return None
    with suppress(OSError, ValueError):
        rate = int((Path(folder) / interface / "speed").read_text())
        return rate if rate > 0 else None
    return None


def nccl_transport(log: str) -> str:
    """The channels and the network that NCCL names in its log (NCCL_DEBUG=INFO); empty if none.
    Written from NCCL's documentation and public logs; not yet tried with a GPU."""
    paths = Counter(re.findall(r"Channel \S+ : .* via ([A-Za-z0-9_]+(?:/[A-Za-z_]+\w*)?)", log))
    channels = ", ".join(f"{path} ({count} channels)" for path, count in paths.most_common(3))
    networks = re.findall(r"Using network (\S+)", log)
    cards = re.findall(r"NET/(?:Socket|IB) : Using (.+)", log)
    network = f"network {networks[-1]}" if networks else ""
    card = cards[-1].strip() if cards else ""
    return "; ".join(part for part in (channels, network, card) if part)
