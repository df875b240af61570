"""A stranger who reaches the port of a rendezvous and writes, removes or repeats every key there,
as fast as it answers: nodes meet as they should, or end with one sentence and INTERRUPTED."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from ports import free_port
from stoker.errors import INTERRUPTED, StokerError
from stoker.fleet import rendezvous
from stoker.fleet.addresses import Endpoint, Nodes
from stoker.fleet.rendezvous import Rendezvous
from waiting import until

pytestmark = [pytest.mark.exact, pytest.mark.timeout(300)]
KEY, STATE, ROUND = b"k" * 32, "torch.rendezvous.stoker", "torch.rendezvous.stoker.0/"
FIRST = [f"{ROUND}{name}" for name in ("door", "number0", "number1", "MASTER_ADDR", "MASTER_PORT")]
KEYS = {
    "state": [STATE],
    "address of rank 0": FIRST[:1],
    "first messages": FIRST,
    "pulses": [f"{ROUND}pulse0", f"{ROUND}pulse1"],
}
HOSTILE = "6.6.6.6:66"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "SILENCE_S", 6.0)
    monkeypatch.setattr(rendezvous, "TRIES", 1)


def connect(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=2))


def write(store: TCPStore, keys: list[str], old: dict[str, bytes]) -> None:
    for key in keys:
        store.set(key, HOSTILE)


def remove(store: TCPStore, keys: list[str], old: dict[str, bytes]) -> None:
    for key in keys:
        store.delete_key(key)


def repeat(store: TCPStore, keys: list[str], old: dict[str, bytes]) -> None:
    """Remember the first value of each key, and write it again from then on."""
    for key in keys:
        if key in old:
            store.set(key, old[key])
        elif store.check([key]):
            old[key] = store.get(key)


def count_up(store: TCPStore, keys: list[str], old: dict[str, bytes]) -> None:
    for key in keys:
        with suppress(RuntimeError, ValueError):  # the store refuses it for text
            store.add(key, 1 << 41)


@contextmanager
def stranger(port: int, act: Callable[..., None], keys: list[str]) -> Iterator[None]:
    """A thread that acts on these keys until the block ends."""
    done, acted, old = threading.Event(), threading.Event(), dict[str, bytes]()

    def attack() -> None:
        with suppress(RuntimeError):  # the host has left
            store = connect(port)
            while not done.wait(0.005):
                act(store, keys, old)
                acted.set()

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        until(acted.is_set)
        yield
    finally:
        done.set()
        thread.join()


def life_of(member: Rendezvous, polls: int = 3) -> str:
    """Meet the other node and poll a few times; returns where rank 0 is, or the last sentence."""
    try:
        round = member.next_round()
        if round.listener:
            round.listener.close()
        polled = 0
        while polled < polls:
            member.changes(round)
            polled += member._poll is None
            time.sleep(0.3)
        return round.address
    except StokerError as error:
        assert error.exit_code == INTERRUPTED, error
        return str(error)
    finally:
        member.close()


@pytest.mark.parametrize("act", [write, remove, repeat, count_up])
@pytest.mark.parametrize("keys", KEYS)
def test_two_nodes_meet_or_end_to_be_started_again(act: Callable[..., None], keys: str) -> None:
    port = free_port()
    endpoint = Endpoint("127.0.0.1", port)
    members = [Rendezvous(endpoint, Nodes(2, 2), KEY, lambda: False) for _ in range(2)]
    with stranger(port, act, KEYS[keys]), ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(life_of, members))
    sentences = ("no node of this run wrote", "the rendezvous at", "'door' of", "the state of")
    for end in ends:
        assert end == "127.0.0.1" or end.startswith((*sentences, "too few nodes")), ends
