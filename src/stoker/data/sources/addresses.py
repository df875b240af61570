"""Which addresses a download may connect to.

Invariants: a host is judged by the address that is connected to: the name is looked up once, and
only addresses that passed are connected to, so that a name cannot lead elsewhere on a second
lookup. Behind a proxy, which does the lookup, only the name is known.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

METADATA = set(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16")))
"""Metadata services of cloud providers that have no link-local address."""
NAT64 = ipaddress.ip_network("64:ff9b::/96")
RESERVED = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")))
"""Not public either, which older versions of Python do not know."""
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
LOCAL_SUFFIXES = ("localhost", "local", "internal", "lan", "home.arpa")
"""Top-level names that no public host has."""


def connect(
    host: str, port: int, timeout_s: float | None, allowed: Callable[[str], bool]
) -> socket.socket | None:
    """A connection to the first address of a host that is allowed and answers; None where no
    address is allowed. Raises OSError where there is no address, or none answers."""
    error: OSError | None = None
    for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        numeric = str(address[0])
        if not allowed(numeric):
            continue
        try:
            return socket.create_connection((numeric, port), timeout_s)
        except OSError as failure:
            error = error or failure
    if error is not None:
        raise error
    return None


def address_of(host: str) -> Address | None:
    """The address that a text spells; None for a name. An IPv6 address that stands for an IPv4
    address (mapped, NAT64, 6to4) counts as that one."""
    text = host.partition("%")[0].rstrip(".").lower()
    try:
        # inet_aton: 127.1, 0x7f000001 and 2130706433 are addresses too.
        address = ipaddress.ip_address(text if ":" in text else socket.inet_aton(text))
    except (ValueError, OSError):
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (last if address in NAT64 else address)


def is_public(host: str) -> bool:
    """Whether an address or name may belong to any host of the internet."""
    address = address_of(host)
    if address is None:
        name = host.rstrip(".").lower()
        return "." in name and not f".{name}".endswith(tuple(f".{end}" for end in LOCAL_SUFFIXES))
    if address in METADATA or any(address in block for block in RESERVED):
        return False
    unicast = address.version == 4 or address in GLOBAL_UNICAST
    return unicast and address.is_global and not address.is_multicast


def is_internal(host: str) -> bool:
    """Whether an address or name belongs to this machine or to a metadata service."""
    address = address_of(host)
    if address is None:
        return f".{host.rstrip('.').lower()}".endswith(".localhost")
    own = address.is_loopback or address.is_link_local or address.is_unspecified
    return own or address in METADATA
