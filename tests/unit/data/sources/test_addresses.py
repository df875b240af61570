"""Which addresses a download may connect to, however they are spelled."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from stoker.data.sources.addresses import connect, is_internal, is_public

OWN = [
    "127.0.0.1",
    "127.8.9.10",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "0.0.0.0",
    "0",
    "localhost",
    "LOCALHOST.",
    "a.localhost",
    "::1",
    "::",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::169.254.169.254",
    "2002:7f00:1::",
    "169.254.169.254",
    "169.254.169.254.",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "100.100.100.200",
    "168.63.129.16",
]
INTRANET = [
    "10.0.0.7",
    "10.1",
    "0xa000007",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.4",
    "100.64.0.1",
    "100.127.255.255",
    "192.0.0.192",
    "198.18.0.1",
    "fc00::1",
    "fd12:3456::1",
    "fec0::1",
    "::ffff:10.0.0.7",
    "::ffff:a00:7",
    "::10.0.0.7",
    "64:ff9b::10.0.0.7",
    "64:ff9b:1::1",
    "2002:a00:7::1",
    "2001:0:a00:7::1",
    "224.0.0.1",
    "239.1.2.3",
    "ff02::1",
    "240.0.0.1",
    "255.255.255.255",
    "intranet",
    "printer.local",
    "metadata.google.internal",
    "nas.lan.",
    "router.home.arpa",
]
PUBLIC = [
    "93.184.216.34",
    "172.15.0.1",
    "172.32.0.1",
    "100.63.255.255",
    "2606:2800::1",
    "::ffff:93.184.216.34",
    "64:ff9b::93.184.216.34",
    "2002:5db8:d822::1",
    "example.org",
    "localhost.org",
    "internal.example.org",
]


@pytest.mark.parametrize("host", OWN)
def test_this_machine_is_known_by_all_its_names(host: str) -> None:
    assert is_internal(host)
    assert not is_public(host)


@pytest.mark.parametrize("host", INTRANET)
def test_an_intranet_is_not_public_and_not_this_machine(host: str) -> None:
    assert not is_internal(host)
    assert not is_public(host)


@pytest.mark.parametrize("host", PUBLIC)
def test_other_hosts_are_public(host: str) -> None:
    assert not is_internal(host)
    assert is_public(host)


class Lookups:
    """Stands for a name server: each lookup gets the next answer."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.names = list(answers), []

    def __call__(self, host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        self.names.append(host)
        return [(0, 0, 0, "", (address, port)) for address in self.answers.pop(0)]


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that are connected to; 203.0.113.1 does not answer."""
    addresses: list[str] = []

    def create_connection(address: tuple[str, int], timeout_s: float) -> socket.socket:
        addresses.append(address[0])
        if address[0] == "203.0.113.1":
            raise ConnectionRefusedError
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", create_connection)
    return addresses


def test_a_name_is_looked_up_once_and_its_address_is_the_one_connected_to(
    connections: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = Lookups(["93.184.216.34"], ["127.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", lookups)
    connection = connect("rebinding.example", 80, 1.0, is_public)
    assert connection is not None
    connection.close()
    assert (lookups.names, connections) == (["rebinding.example"], ["93.184.216.34"])


def test_only_allowed_addresses_of_a_name_are_tried(
    connections: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = ["127.0.0.1", "203.0.113.1", "10.0.0.7", "93.184.216.34"]
    monkeypatch.setattr(socket, "getaddrinfo", Lookups(addresses))
    connection = connect(
        "mixed.example", 80, 1.0, lambda host: host not in ("127.0.0.1", "10.0.0.7")
    )
    assert connection is not None
    connection.close()
    assert connections == ["203.0.113.1", "93.184.216.34"]


def test_no_allowed_address_is_none_and_no_answer_is_an_error(
    connections: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Lookups(["10.0.0.7", "::1"], ["203.0.113.1"]))
    assert connect("inside.example", 80, 1.0, is_public) is None
    assert connections == []
    with pytest.raises(ConnectionRefusedError):
        connect("down.example", 80, 1.0, lambda host: True)
