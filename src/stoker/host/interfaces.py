"""Which way bytes really went: what interfaces counted, and what NCCL says of itself.

Invariants: absent is absent: where nothing counts, or nothing is said, there is no answer, never a
zero. Counters are the whole machine's: others' traffic is in them too.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

from stoker.host import proc
from stoker.host.counters import kernel_text

COUNTERS = "/proc/net/dev"
CARDS = "/sys/class/net"


def sent_bytes(table: str = COUNTERS) -> dict[str, int]:
    """Bytes sent so far, by interface; empty where nobody counts."""
    counts = proc.interface_bytes(kernel_text(table))
    return {name: sent for name, (_, sent) in counts.items()}


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What each interface has sent in between."""
    return {name: count - before[name] for name, count in after.items() if name in before}


def grown_most(sent: dict[str, int]) -> tuple[str, int] | None:
    """The interface that sent most, and how much; None if none sent anything. A bridge or tunnel
    counts the bytes of the card below it again: of equals, the first by name."""
    most = max(sorted(sent), key=sent.__getitem__, default=None)
    return None if most is None or sent[most] <= 0 else (most, sent[most])


def card_mbit(interface: str, cards: str = CARDS) -> int | None:
    """The rate that a card says it has agreed on with its port; virtual ones often say none."""
    if interface in ("", ".", "..") or "/" in interface:
        return None
    with suppress(OSError, ValueError):
        rate = int((Path(cards) / interface / "speed").read_text())
        return rate if rate > 0 else None
    return None


def nccl_words(text: str) -> str:
    """The transport that NCCL names in its own log (NCCL_DEBUG=INFO): what most channels go by,
    and the network it uses. Written from its documentation and public logs; never run here."""
    ways = Counter(re.findall(r"Channel \S+ : .* via ([A-Za-z0-9_]+(?:/[A-Za-z_]+\w*)?)", text))
    by = ", ".join(f"{way} ({count} channels)" for way, count in ways.most_common(3))
    networks = re.findall(r"Using network (\S+)", text)
    cards = re.findall(r"NET/(?:Socket|IB) : Using (.+)", text)
    used = [f"network {networks[-1]}"] if networks else []
    return "; ".join([*([by] if by else []), *used, *([cards[-1].strip()] if cards else [])])
