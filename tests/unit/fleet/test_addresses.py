"""The address that a name in --rendezvous leads to, and how long nodes wait there."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from golden import check_golden
from ports import free_port
from stoker.errors import BadRequest, Interrupted
from stoker.fleet import addresses, rendezvous
from stoker.fleet.addresses import JOIN_S, Endpoint, Nodes, interfaces, join_seconds, meeting_point
from stoker.fleet.rendezvous import Rendezvous

ONE = [("lo", "127.0.0.1"), ("eth0", "10.77.0.1")]
TWO = [*ONE, ("docker0", "172.17.0.1")]
HOSTS = {
    "node-a": ["127.0.1.1"],
    "Node-A.example.org": ["127.0.1.1"],
    "node-b": ["127.0.1.1"],
    "both": ["127.0.1.1", "10.77.0.1"],
    "far": ["10.77.0.9"],
    "localhost": ["127.0.0.1"],
    "localhost.localdomain": ["127.0.0.1"],
    "127.0.0.1": ["127.0.0.1"],
    "127.1": ["127.0.0.1"],
    "10.77.0.1": ["10.77.0.1"],
}


class Machine:
    """What a machine named node-a knows of itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.interfaces, self.default = "node-a", ONE, ""
        monkeypatch.setattr(addresses, "interfaces", lambda: self.interfaces)
        monkeypatch.setattr(addresses.socket, "gethostname", lambda: self.name)
        monkeypatch.setattr(addresses.socket, "getaddrinfo", self.look_up)
        monkeypatch.setattr(Endpoint, "local_address", self.route)

    def look_up(self, host: str, port: int, *kind: int) -> list[tuple[Any, ...]]:
        return [(*kind, 0, "", (address, port)) for address in HOSTS[host]]

    def route(self) -> str:
        if not self.default:
            raise OSError("unreachable")
        return self.default


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def leads_to(host: str, own: str | None = None) -> tuple[str, bool]:
    """The address, and whether there is a note."""
    place, note = Endpoint(host, 29400).resolved(own)
    assert place.port == 29400
    return place.host, bool(note)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost", "127.0.0.1"),
        ("localhost.localdomain", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("10.77.0.1", "10.77.0.1"),
        ("far", "10.77.0.9"),
        ("both", "10.77.0.1"),
    ],
)
def test_what_other_machines_reach_or_the_user_wants_is_taken(
    machine: Machine, host: str, address: str
) -> None:
    assert leads_to(host) == (address, False)


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("node-a", "node-a"),
        ("node-a", "Node-A.example.org"),
        ("node-a.example.org", "node-a"),
    ],
)
def test_a_machines_own_name_is_not_loopback(machine: Machine, name: str, host: str) -> None:
    machine.name = name
    assert leads_to(host) == ("10.77.0.1", True)


def test_the_default_route_chooses_between_several_addresses(machine: Machine) -> None:
    machine.interfaces, machine.default = TWO, "10.77.0.1"
    assert leads_to("node-a") == ("10.77.0.1", True)
    assert leads_to("node-a", own="172.17.0.1") == ("172.17.0.1", True), "the user has chosen"
    machine.default = "127.0.0.1"
    with pytest.raises(BadRequest):
        leads_to("node-a")


def test_sentences_golden(machine: Machine) -> None:
    def said() -> str:
        try:
            return Endpoint("node-a", 29400).resolved()[1]
        except BadRequest as error:
            return f"exit {error.exit_code}: {error}"

    lines = [said()]
    machine.interfaces, machine.default = TWO, "10.77.0.1"
    lines.append(said())
    machine.default = ""
    lines.append(said())
    machine.interfaces = ONE[:1]
    lines.append(said())
    machine.name = "node-b"
    lines.append(said())
    check_golden("fleet_addresses", lines)


def test_interfaces_have_names_and_addresses() -> None:
    assert ("lo", "127.0.0.1") in list(interfaces())


@pytest.mark.parametrize(("text", "seconds"), [("", JOIN_S), ("1", 1.0), ("86400", 86400.0)])
def test_the_wait_for_nodes_can_be_set(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: float
) -> None:
    monkeypatch.setenv("STOKER_JOIN_S", text)
    assert join_seconds() == seconds


@pytest.mark.parametrize("text", ["0", "0.9", "86401", "-5", "nan", "inf", "soon"])
def test_other_waits_are_refused_at_once(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("STOKER_JOIN_S", text)
    with pytest.raises(BadRequest, match=f"STOKER_JOIN_S={text}: .* from 1 to 86400"):
        meeting_point("2", "10.0.0.1:29400")


@pytest.mark.timeout(300)
def test_a_short_wait_leaves_time_for_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_JOIN_S", "1")
    alone = Rendezvous(Endpoint("127.0.0.1", free_port()), Nodes(1, 2), b"k" * 32, lambda: False)
    round = alone.next_round()
    assert round.listener is not None
    round.listener.close()
    alone.leave(round, finished=True)
    alone.close()


@pytest.mark.timeout(300)
def test_the_host_listens_at_the_address_that_it_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every address of 127.0.0.0/8 is this machine's."""
    place = Endpoint("127.0.0.2", free_port())
    monkeypatch.setattr(Endpoint, "resolved", lambda self, own: (place, "a note"))
    alone = Rendezvous(Endpoint("node-a", place.port), Nodes(1, 1), b"k" * 32, lambda: False)
    assert alone.hosts
    assert place.listen() is None
    assert capsys.readouterr().out == "a note\n"
    with socket.create_connection((place.host, place.port), 60), pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", place.port), 60)
    round = alone.next_round()
    assert round.listener is not None
    round.listener.close()
    alone.leave(round, finished=True)
    alone.close()


@pytest.mark.parametrize("silent", ["the name server", "the host"])
def test_a_stop_request_ends_a_call_that_does_not_return(
    monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    stop, over = threading.Event(), threading.Event()

    def hang(*_: Any) -> None:
        stop.set()
        over.wait()

    name = "getaddrinfo" if silent == "the name server" else "create_connection"
    monkeypatch.setattr(rendezvous.socket, name, hang)
    monkeypatch.setattr(Endpoint, "listen", lambda self: None)
    try:
        with pytest.raises(Interrupted, match="stopped"):
            Rendezvous(Endpoint("127.0.0.1", 1), Nodes(2, 2), b"k" * 32, stop.is_set)
    finally:
        over.set()
