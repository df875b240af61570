"""The parts of elastic runs: addresses, the signed store, the rendezvous, and exit codes."""

from __future__ import annotations

import errno
import pickle
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGUSR1
from typing import Any

import pytest
from torch.distributed import HashStore, TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from golden import check_golden
from ports import free_port
from stoker.errors import BadRequest, Interrupted, StokerError
from stoker.fleet import addresses, elastic, rendezvous
from stoker.fleet.addresses import Endpoint, Nodes, interface_of, listening_socket, meeting_point
from stoker.fleet.elastic import Launch, end, node_exit_code, run_round
from stoker.fleet.rendezvous import (
    LEFT,
    PULSES_MISSED,
    ForeignContent,
    NodeChanges,
    Rendezvous,
    Round,
    background_call,
)
from stoker.fleet.signed_store import RoundMessages, SignedStore, shared_key
from waiting import until

KEY = b"k" * 32


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node on a busy machine is not treated as lost here."""
    monkeypatch.setattr(rendezvous, "SILENCE_S", 240.0)
    monkeypatch.setattr(rendezvous, "KEEP_ALIVE_S", 60)


@pytest.mark.parametrize(
    ("text", "nodes", "words"),
    [("2", Nodes(2, 2), "2"), ("1:4", Nodes(1, 4), "1 to 4"), ("3:3", Nodes(3, 3), "3")],
)
def test_nodes_are_a_number_or_a_range(text: str, nodes: Nodes, words: str) -> None:
    assert Nodes.parse(text) == nodes
    assert str(nodes) == words


@pytest.mark.parametrize("text", ["", "0", "0:2", "3:2", "two", "1:", ":2", "1:2:3", "-1"])
def test_other_numbers_of_nodes_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="--nodes"):
        Nodes.parse(text)


def test_an_endpoint_is_a_host_and_a_port() -> None:
    assert Endpoint.parse("10.0.0.1:29400") == Endpoint("10.0.0.1", 29400)
    assert str(Endpoint("node-a", 1)) == "node-a:1"


@pytest.mark.parametrize("text", ["", "node-a", "node-a:", ":29400", "node-a:0", "a:70000", "a:b"])
def test_other_endpoints_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="--rendezvous"):
        Endpoint.parse(text)


def test_loopback_is_found_and_an_unknown_address_is_named() -> None:
    endpoint = Endpoint("127.0.0.1", 29400)
    assert endpoint.local_address() == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(BadRequest, match="GLOO_SOCKET_IFNAME"):
        interface_of("192.0.2.77")


def test_one_hosts_on_its_own_address_and_the_others_do_not() -> None:
    with listening_socket("127.0.0.1", 0) or pytest.fail("no port") as first:
        address, port = first.getsockname()
        assert address == "127.0.0.1"
        assert Endpoint("127.0.0.1", port).listen() is None
    assert Endpoint("192.0.2.77", 29400).listen() is None


class Bomb:
    """What an intruder would like to have unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("unpickled",))


def test_what_was_signed_comes_back_and_is_replaced_by_its_token() -> None:
    store = HashStore()
    ours, theirs = (SignedStore(C10dRendezvousBackend(store, "run"), KEY) for _ in range(2))
    assert ours.get_state() is None
    first = ours.set_state(b"one")
    assert first is not None and first[0] == b"one" and first[2]
    stale = theirs.set_state(b"two")
    assert stale is not None and stale[0] == b"one" and not stale[2]
    after = theirs.set_state(b"two", stale[1])
    assert after is not None and after[0] == b"two" and after[2]
    assert (ours.get_state() or pytest.fail("empty"))[0] == b"two"


@pytest.mark.parametrize("forged", [b"", b"short", b"x" * 100, "other key"])
def test_a_forged_state_is_refused_before_anybody_reads_it(forged: bytes | str) -> None:
    inner = C10dRendezvousBackend(HashStore(), "run")
    if isinstance(forged, str):
        SignedStore(inner, b"o" * 32).set_state(b"state")
    else:
        inner.set_state(forged)
    ours = SignedStore(inner, KEY)
    with pytest.raises(RendezvousStateError):
        ours.get_state()
    with pytest.raises(RendezvousStateError):
        ours.set_state(b"mine")


LEAVES = """
import sys, threading
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from stoker.fleet.signed_store import SignedStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
ours, asked = SignedStore(C10dRendezvousBackend(store, "run"), bytes(32)), threading.Event()

def ask():
    while True:
        ours.set_state(b"state")
        asked.set()

threading.Thread(target=ask, daemon=True).start()
asked.wait()
ours.close()
sys.exit(75)
"""


def test_a_process_that_leaves_while_a_thread_asks_keeps_its_exit_code() -> None:
    """A thread inside the store as Python ends would abort the process."""
    done = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True)
    assert done.returncode == 75, done.stderr


@pytest.mark.timeout(300)
def test_an_intruders_pickle_is_refused() -> None:
    port = free_port()
    ours = Rendezvous(Endpoint("127.0.0.1", port), Nodes(1, 1), KEY, lambda: False)
    assert ours.hosts
    intruder = C10dRendezvousBackend(TCPStore("127.0.0.1", port, is_master=False), "stoker")
    intruder.set_state(pickle.dumps(Bomb()))
    with pytest.raises(ForeignContent, match=str(port)):
        ours.next_round()


@pytest.mark.timeout(300)
def test_one_node_makes_a_round_alone() -> None:
    alone = Rendezvous(Endpoint("127.0.0.1", free_port()), Nodes(1, 1), KEY, lambda: False)
    round = alone.next_round()
    assert (round.node, round.nodes, round.address) == (0, 1, "127.0.0.1")
    assert round.listener is not None
    assert round.listener.getsockname() == ("127.0.0.1", round.port)
    round.listener.close()
    assert alone.changes(round) == NodeChanges()
    alone.leave(round, finished=True)


@pytest.mark.timeout(300)
def test_a_node_that_the_others_took_for_lost_notices_their_new_round() -> None:
    alone = Rendezvous(Endpoint("127.0.0.1", free_port()), Nodes(1, 2), KEY, lambda: False)
    round = alone.next_round()
    assert alone._changes(round) == NodeChanges()
    alone._announce("another round")
    assert alone._changes(round) == NodeChanges(expelled=True)
    assert round.listener is not None
    round.listener.close()
    alone.close()


@pytest.mark.timeout(300)
def test_a_node_that_waits_does_not_end_a_full_round(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Rendezvous(Endpoint("127.0.0.1", free_port()), Nodes(1, 1), KEY, lambda: False)
    round = alone.next_round()
    monkeypatch.setattr(alone._inner, "num_nodes_waiting", lambda: 1)
    assert alone._changes(round).waiting == 0
    round.set_pulse(LEFT)
    assert alone._changes(round).waiting == 1
    assert round.listener is not None
    round.listener.close()
    alone.close()


def rounds_of(store: HashStore, nodes: int) -> list[Round]:
    messages = [RoundMessages(store, KEY, node, nodes) for node in range(nodes)]
    return [Round(node, nodes, messages[node], "127.0.0.1", 1, None) for node in range(nodes)]


def test_a_node_without_a_pulse_is_lost_and_one_that_left_in_order_is_not() -> None:
    ours, other, left = rounds_of(HashStore(), 3)
    other.count_lost_nodes()
    left.count_lost_nodes()
    left.set_pulse(LEFT)
    lost = [ours.count_lost_nodes() for _ in range(PULSES_MISSED + 2)]
    assert lost == [0] * (PULSES_MISSED + 1) + [1]
    other.count_lost_nodes()
    assert ours.count_lost_nodes() == 0


def test_a_late_poll_does_not_bring_a_node_back_that_left() -> None:
    ours, left = rounds_of(HashStore(), 2)
    left.set_pulse(LEFT)
    left.set_pulse(1)
    assert ours.read_pulses()[1] >= LEFT
    left.count_lost_nodes()
    assert ours.read_pulses()[1] >= LEFT


def test_an_old_pulse_written_again_does_not_keep_a_lost_node() -> None:
    store = HashStore()
    ours, other = rounds_of(store, 2)
    pulses = []
    for _ in range(2):
        other.count_lost_nodes()
        pulses.append(store.get("pulse1"))
    for number in range(2 * PULSES_MISSED):
        store.set("pulse1", pulses[number % 2])
        lost = ours.count_lost_nodes()
    assert lost == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("hosts", [True, False], ids=["no peers", "no host"])
def test_a_stop_request_ends_the_wait_for_other_nodes(
    hosts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, stop = Endpoint("127.0.0.1", free_port()), threading.Event()
    if not hosts:
        monkeypatch.setattr(Endpoint, "listen", lambda self: None)
    timer = threading.Timer(2.0, stop.set)
    timer.start()
    with pytest.raises(Interrupted, match="stopped"):
        Rendezvous(endpoint, Nodes(2, 2), KEY, stop.is_set).next_round()
    timer.join()


@pytest.mark.timeout(300)
def test_a_host_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endpoint, "listen", lambda self: None)
    monkeypatch.setenv("STOKER_JOIN_S", "1")
    endpoint = Endpoint("127.0.0.1", free_port())
    with pytest.raises(Interrupted, match=rf"{endpoint} within 1 s \(STOKER_JOIN_S"):
        Rendezvous(endpoint, Nodes(1, 2), KEY, lambda: False)


@pytest.mark.timeout(300)
def test_a_store_that_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "SILENCE_S", 4.0)
    mute = socket.create_server(("127.0.0.1", 0))
    endpoint = Endpoint("127.0.0.1", mute.getsockname()[1])
    monkeypatch.setattr(rendezvous, "CONNECT_S", 3)
    with mute, pytest.raises(Interrupted, match=str(endpoint)):
        Rendezvous(endpoint, Nodes(1, 1), KEY, lambda: False)


def test_a_background_call_returns_or_raises_what_its_function_does() -> None:
    calls = [background_call(lambda: 7), background_call(lambda: 1 // 0)]
    until(lambda: all(call.done() for call in calls))
    assert calls[0].result() == 7
    with pytest.raises(ZeroDivisionError):
        calls[1].result()


def test_the_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "run" / "rendezvous.key"
    with ThreadPoolExecutor(16) as pool:
        keys = set(pool.map(partial(shared_key, patience_s=120), [path] * 64))
    assert len(keys) == 1
    assert len(keys.pop()) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_node_that_is_killed_while_it_makes_the_key_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rendezvous.key"
    script = (
        "import os, signal, sys; from pathlib import Path; from stoker.fleet import signed_store\n"
        "os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)\n"
        "signed_store.shared_key(Path(sys.argv[1]))"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)]).returncode == -SIGKILL
    assert len(shared_key(path, patience_s=1)) == 32

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "this mount has no links")

    path.unlink()
    monkeypatch.setattr("os.link", refuse)
    assert len(shared_key(path)) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_damaged_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rendezvous.key"
    path.write_bytes(b"half")
    with pytest.raises(StokerError, match=r"rendezvous\.key is damaged"):
        shared_key(path, patience_s=0.2)


@pytest.mark.parametrize(
    ("codes", "stopped", "expected"),
    [
        ([0, 0], False, 0),
        ([0, 0], True, 0),
        ([0, 76], False, 76),
        ([76, 76], False, 76),
        ([76, 76], True, 75),
        ([75, 76], False, 75),
        ([2, 76], False, 2),
        ([2, -9], True, 2),
        ([1, 76], False, 1),
        ([-9, 76], False, 1),
        ([-9, 75], True, 1),
    ],
)
def test_what_a_node_does_follows_from_its_ranks(
    codes: list[int], stopped: bool, expected: int
) -> None:
    assert node_exit_code(codes, stopped) == expected


def python(code: str) -> subprocess.Popen[bytes]:
    """A process that has said that it is ready, where its code says so."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    if "ready" in code:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


def test_ranks_that_our_signals_kill_stepped_aside_and_others_keep_their_codes() -> None:
    asleep = "print('ready', flush=True); import time; time.sleep(300)"
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN);"
    running = [python("raise SystemExit(1)"), python(asleep), python(stubborn + asleep)]
    running[0].wait()
    assert end(running, SIGTERM, 0.5) == [1, 76, 76]
    assert running[2].returncode == -SIGKILL
    assert end([python("raise SystemExit(75)")], SIGUSR1, 5.0) in ([75], [76])


def test_a_launcher_stays_in_its_round_while_ranks_save() -> None:
    polls: list[int] = []
    rank = python(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); "
        "time.sleep(2); raise SystemExit(76)"
    )
    assert end([rank], SIGTERM, 120.0, lambda: polls.append(0)) == [76]
    assert polls


def refusal(function: Any, *arguments: Any) -> str:
    with pytest.raises(StokerError) as raised:
        function(*arguments)
    return str(raised.value)


def test_messages_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message of addresses, the signed store and the rendezvous."""
    monkeypatch.setattr(Endpoint, "listen", lambda self: None)
    monkeypatch.setattr(addresses, "JOIN_S", 0)
    (tmp_path / "rendezvous.key").write_bytes(b"half")
    endpoint = Endpoint("127.0.0.1", 29400)
    member = Rendezvous.__new__(Rendezvous)
    member.endpoint, member._stop = endpoint, lambda: True
    member.hosts, member._resident = True, -(2 << 30)

    def answer(error: Exception) -> None:
        call: Future[None] = Future()
        call.set_exception(error)
        member._answer(call)

    messages = [
        refusal(Nodes.parse, "two"),
        refusal(Nodes.parse, "3:2"),
        refusal(Endpoint.parse, "node-a"),
        refusal(Endpoint("node..x", 1).resolved),
        refusal(interface_of, "192.0.2.77"),
        refusal(meeting_point, "2", None),
        refusal(shared_key, tmp_path / "rendezvous.key", 0.0).replace(str(tmp_path), "RUN"),
        refusal(Rendezvous, endpoint, Nodes(2, 2), KEY, lambda: False),
        refusal(member._check_stop),
        refusal(answer, RendezvousTimeoutError("late")),
        refusal(answer, RendezvousStateError("no node of this run wrote 'door'")),
        refusal(member._check_memory),
        refusal(answer, RendezvousConnectionError("lost")),
    ]
    check_golden("fleet_rendezvous", messages)


def test_a_node_without_free_file_descriptors_ends_to_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle connections of a stranger take them."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(elastic, "start", refuse)
    member = Rendezvous.__new__(Rendezvous)
    member.endpoint, member.local_address = Endpoint("127.0.0.1", 29400), "127.0.0.1"
    (round,) = rounds_of(HashStore(), 1)
    plan = Launch(1, [], tmp_path, {}, lambda: False)
    with pytest.raises(Interrupted) as error:
        run_round(plan, member, round, tmp_path / "log")
    check_golden("fleet_elastic", [str(error.value)])
