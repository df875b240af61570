"""Messages in the store of a rendezvous: none is read that another program wrote, or that a node
wrote under another name, in another round or before a newer one."""

from __future__ import annotations

from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import DistStoreError, HashStore
from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from stoker.fleet.signed_store import MOST_BYTES, NodeLeft, RoundMessages, SignedStore, signed

pytestmark = [pytest.mark.exact, pytest.mark.timeout(300)]
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
STATE = "torch.rendezvous.stoker"


def unheard(round: str) -> None: ...


def agreed(store: HashStore) -> list[tuple[RoundMessages, str]]:
    """Two nodes that have agreed on a round, and the address that each was given for rank 0."""
    messages = [RoundMessages(store, KEY, node, 2) for node in range(2)]
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(node.agree, "10.0.0.1:7" if number == 0 else None, unheard)
            for number, node in enumerate(messages)
        ]
        return [(node, call.result()) for node, call in zip(messages, calls, strict=True)]


def test_nodes_agree_on_the_address_of_rank_0() -> None:
    store = HashStore()
    (first, at), (second, also_at) = agreed(store)
    assert at == also_at == "10.0.0.1:7"
    first.put("pulse0", "5")
    assert second.get("pulse0") == "5"


def test_a_round_is_announced_before_a_node_can_begin_it() -> None:
    store, announced = HashStore(), list[str]()

    def announce(round: str) -> None:
        assert not store.check(["door"])
        announced.append(round)

    alone = RoundMessages(store, KEY, 0, 1)
    alone.agree("10.0.0.1:7", announce)
    assert announced == [alone.round]


def test_no_node_begins_before_all_have_agreed() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=0.5))
    (first, _), (second, _) = agreed(store)
    with pytest.raises(DistStoreError):
        first.wait_for_all()
    second.wait_for_all()
    first.wait_for_all()


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_node_that_counts_other_nodes_than_rank_0_leaves_the_round(nodes: int) -> None:
    """Torch removes a node that it takes for lost, also while others read who is there."""
    store = HashStore()
    for node in range(nodes):
        store.set(f"number{node}", signed(KEY, f"number{node}", b"0"))
    RoundMessages(store, KEY, 0, nodes).agree("10.0.0.1:7", unheard)
    for number, count in ((1, 2), (nodes, nodes)):
        with pytest.raises(NodeLeft):
            RoundMessages(store, KEY, number, count).agree(None, unheard)


GARBAGE = {
    "nothing": b"",
    "text": b"6.6.6.6:66",
    "not text": b"\xff" * 40,
    "huge": b"x" * (MOST_BYTES + 1),
    "another key": signed(OTHER_KEY, "door", b"6.6.6.6:66"),
    "another name": signed(KEY, "pulse1", b"6.6.6.6:66"),
    "name and text moved": signed(KEY, "doo", b"r6.6.6.6:66"),
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("name", ["door", "number0", "pulse1"])
def test_garbage_under_any_name_is_refused(name: str, content: bytes) -> None:
    if name == "pulse1" and content == GARBAGE["another name"]:
        content = signed(KEY, "door", b"5")
    store = HashStore()
    store.set(name, content)
    ours = RoundMessages(store, KEY, 1, 2)
    with pytest.raises(RendezvousStateError):
        ours.get(name)


def test_messages_of_another_round_are_refused() -> None:
    """Each name is written again with what was there in an earlier round of the same run."""
    store, earlier = HashStore(), HashStore()
    (node, _), _ = agreed(earlier)
    node.put("pulse0", "5")
    (_, _), (ours, _) = agreed(store)
    store.set("pulse0", earlier.get("pulse0"))
    with pytest.raises(RendezvousStateError, match="pulse0"):
        ours.get("pulse0")

    store = HashStore()
    store.set("door", earlier.get("door"))
    with pytest.raises(RendezvousStateError, match="another round"):
        RoundMessages(store, KEY, 1, 2).agree(None, unheard)

    store = HashStore()
    store.set("number1", earlier.get("number1"))
    RoundMessages(store, KEY, 0, 2).agree("10.0.0.1:7", unheard)
    with pytest.raises(RendezvousStateError, match="another round"):
        RoundMessages(store, KEY, 1, 2).agree(None, unheard)


def test_an_older_state_and_a_removed_state_are_refused() -> None:
    store = HashStore()
    ours = SignedStore(C10dRendezvousBackend(store, "stoker"), KEY)
    _, token, _ = ours.set_state(b"one") or pytest.fail("not set")
    older = store.get(STATE)
    _, token, _ = ours.set_state(b"two", token) or pytest.fail("not set")
    store.set(STATE, older)
    for ask in (ours.get_state, lambda: ours.set_state(b"three", token)):
        with pytest.raises(RendezvousStateError, match="older"):
            ask()
    store.set(STATE, C10dRendezvousBackend._NULL_SENTINEL)
    with pytest.raises(RendezvousStateError, match="removed"):
        ours.get_state()


@pytest.mark.parametrize("content", [b"\xff\xfe", b"====", b64encode(b"x" * 99), b""])
def test_a_state_that_cannot_be_decoded_is_refused(content: bytes) -> None:
    store = HashStore()
    ours = SignedStore(C10dRendezvousBackend(store, "stoker"), KEY)
    _, token, _ = ours.set_state(b"one") or pytest.fail("not set")
    store.set(STATE, content)
    for ask in (ours.get_state, lambda: ours.set_state(b"two", token)):
        with pytest.raises(RendezvousStateError):
            ask()
