"""Requests to a web server on loopback that fails by a table."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_proxy import FaultProxy, fault_proxy
from object_store import plain_http
from stoker.stores.client import NEAR, StoreClient, spans
from stoker.stores.location import location_of
from stoker.stores.objects import Missing, StoreError
from stoker.stores.patience import Stopped
from stoker.stores.trouble import NoParts
from waiting import until

pytest.importorskip("obstore", reason="no obstore: pip install obstore")

DATA = b"".join(hashlib.sha256(str(number).encode()).digest() for number in range(100_000))
"""3.2 MB: several chunks."""


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FaultProxy]:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a").write_bytes(DATA)
    with plain_http(tmp_path) as server, fault_proxy(server.endpoint) as started:
        yield started


def client_of(proxy: FaultProxy, patience_s: float = 20) -> StoreClient:
    location = location_of(f"{proxy.endpoint}/set")
    assert location is not None
    return StoreClient(location, patience_s=patience_s)


def streamed(client: StoreClient, length: int = len(DATA)) -> bytes:
    received = bytearray()
    client.stream("a", length, received.extend)
    return bytes(received)


def test_an_object_is_read_in_all_ways(proxy: FaultProxy) -> None:
    client = client_of(proxy)
    assert client.read("a")[0] == DATA
    assert streamed(client) == DATA
    found = client.find("a")
    assert found is not None
    assert found.bytes == len(DATA)
    ranges = [(5, 10), (1_000_000, 100), (20, 7), (0, 0), (len(DATA) - 1, 1), (5, 3)]
    parts = client.read_ranges("a", ranges)
    assert [bytes(part) for part in parts] == [DATA[o : o + n] for o, n in ranges]
    into = bytearray(9)
    client.read_range("a", 77, memoryview(into))
    assert into == DATA[77:86]
    assert client.bytes_read > 2 * len(DATA)


def test_a_key_comes_behind_one_slash(proxy: FaultProxy) -> None:
    client_of(proxy).find("a")
    assert [asked.key for asked in proxy.asked] == ["set/a"]


def test_near_ranges_are_one_request(proxy: FaultProxy) -> None:
    client_of(proxy).read_ranges("a", [(0, 10), (100, 10), (NEAR, 10), (1_000_000, 10)])
    assert sorted(str(asked.range) for asked in proxy.asked) == [
        f"bytes=0-{NEAR + 9}",
        "bytes=1000000-1000009",
    ]


@pytest.mark.parametrize(
    ("ranges", "wide"),
    [
        ([], []),
        ([(5, 5)], [(5, 10)]),
        ([(100, 5), (0, 5)], [(0, 105)]),
        ([(0, 50), (10, 5)], [(0, 50)]),
        (
            [(0, 5), (5 + NEAR, 5), (11 + 2 * NEAR, 1)],
            [(0, 10 + NEAR), (11 + 2 * NEAR, 12 + 2 * NEAR)],
        ),
    ],
)
def test_spans_hold_all_ranges(ranges: list[tuple[int, int]], wide: list[tuple[int, int]]) -> None:
    assert spans(ranges) == wide


def test_a_stream_goes_on_behind_its_last_byte(proxy: FaultProxy) -> None:
    proxy.fault("half_body", bytes=2_500_000)
    assert streamed(client_of(proxy)) == DATA
    first, second = proxy.asked
    assert first.range is None
    assert second.range is not None
    assert int(second.range.removeprefix("bytes=").split("-")[0]) >= 1 << 20


def test_a_server_without_ranges_sends_it_again_from_the_beginning(proxy: FaultProxy) -> None:
    proxy.fault("half_body", bytes=2_500_000)
    proxy.fault("ignored_range", first=2, times=None)
    assert streamed(client_of(proxy)) == DATA
    assert proxy.asked[-1].range is None


def test_parts_of_a_server_without_ranges_are_refused(proxy: FaultProxy) -> None:
    proxy.fault("ignored_range", times=None)
    with pytest.raises(NoParts, match="STOKER_CACHE_GB"):
        client_of(proxy).read_ranges("a", [(0, 10)])


def test_a_wrong_length_is_believed_after_some_tries(proxy: FaultProxy) -> None:
    proxy.fault("short_length", times=2)
    assert streamed(client_of(proxy)) == DATA
    with pytest.raises(StoreError, match="changed after packing"):
        streamed(client_of(proxy), len(DATA) + 1)
    assert [asked.done for asked in proxy.asked].count("passed") == 4


def test_a_short_range_is_never_used(proxy: FaultProxy) -> None:
    proxy.fault("truncated_ok", times=2)
    (part,) = client_of(proxy).read_ranges("a", [(1000, 5000)])
    assert bytes(part) == DATA[1000:6000]


def test_what_is_not_there_is_missing_at_once_or_after_some_tries(proxy: FaultProxy) -> None:
    client = client_of(proxy)
    with pytest.raises(Missing):
        client.read("none")
    assert client.find("none") is None
    assert len(proxy.asked) == 2
    with pytest.raises(Missing):
        client.read_ranges("none", [(0, 1)])
    proxy.calm()
    proxy.fault("stale_not_found", times=2)
    assert streamed(client) == DATA


def test_a_large_object_in_the_place_of_a_small_one_is_refused(proxy: FaultProxy) -> None:
    with pytest.raises(StoreError, match="more than such an object can have"):
        client_of(proxy).read("a", most_bytes=1000)


@pytest.mark.parametrize("fault", ["stall_body", "slow_first_byte"])
def test_a_stop_ends_every_request(proxy: FaultProxy, fault: str) -> None:
    client = client_of(proxy, patience_s=300)
    rule = proxy.fault(fault, times=None, seconds=600)
    outcomes: list[BaseException] = []

    def ask(call: object) -> None:
        try:
            call()  # type: ignore[operator]
        except BaseException as error:
            outcomes.append(error)

    calls = [
        lambda: client.read("a"),
        lambda: streamed(client),
        lambda: client.read_ranges("a", [(0, 1000)]),
    ]
    threads = [threading.Thread(target=ask, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    until(lambda: rule.seen == len(calls))
    client.stopped.set()
    for thread in threads:
        thread.join(60)
    assert [type(error) for error in outcomes] == [Stopped] * len(calls)
    assert client.again().stopped.is_set() is False
