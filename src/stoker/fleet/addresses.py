"""The addresses at which nodes meet: parsing, listening sockets, and network interfaces.

Invariants: a socket listens on one address, never on all. The node that can bind the rendezvous
address hosts the rendezvous; no flag says which node that is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

from stoker.errors import BadRequest

_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Nodes:
    """How many nodes a round of training has, at least and at most."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Nodes:
        least, colon, most = text.partition(":")
        try:
            nodes = cls(int(least), int(most if colon else least))
        except ValueError as error:
            raise BadRequest(f"--nodes must be MIN:MAX or a number, not '{text}'") from error
        if not 1 <= nodes.least <= nodes.most:
            raise BadRequest(f"--nodes MIN:MAX needs 1 <= MIN <= MAX, not '{text}'")
        return nodes

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True)
class Endpoint:
    """The address at which the nodes meet; the node that owns it hosts the store."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise BadRequest(f"--rendezvous must be HOST:PORT, not '{text}'")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """The host's IPv4 address; raises BadRequest if its name cannot be resolved."""
        try:
            return socket.gethostbyname(self.host)
        except OSError as error:
            raise BadRequest(f"--rendezvous {self.host}: unknown host, name its address") from error

    def listen(self) -> socket.socket | None:
        """A socket that listens there; None if another machine or program has the address."""
        return listening_socket(self.address, self.port)

    def local_address(self) -> str:
        """The address of this machine from which it reaches the host."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.address, self.port))
            return str(probe.getsockname()[0])


def listening_socket(address: str, port: int) -> socket.socket | None:
    """A socket that listens on one address; None if another machine or program has the address."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
            return None
        raise BadRequest(f"cannot listen on {address}:{port}: {error.strerror}") from error
    return listener


def interface_of(address: str) -> str:
    """The network interface with this address: gloo would guess one from the host's name. What
    GLOO_SOCKET_IFNAME names takes precedence. Raises BadRequest if there is none."""
    if name := os.environ.get("GLOO_SOCKET_IFNAME"):
        return name
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode())
                if fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24] == socket.inet_aton(address):
                    return name
    raise BadRequest(f"no interface has the address {address}: name one in GLOO_SOCKET_IFNAME")


def meeting_point(nodes: str | None, rendezvous: str | None) -> tuple[Endpoint, Nodes] | None:
    """Where nodes meet and how many; None for this machine alone. Raises BadRequest if wrong."""
    if nodes is None and rendezvous is None:
        return None
    if nodes is None or rendezvous is None:
        raise BadRequest("--nodes and --rendezvous go together: how many nodes meet, and where")
    return Endpoint.parse(rendezvous), Nodes.parse(nodes)
