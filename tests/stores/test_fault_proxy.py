"""The proxy does each fault of its table, and nothing else."""

from __future__ import annotations

import gzip
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_proxy import FAULTS, PASSED, FaultProxy, fault_proxy
from object_store import plain_http
from waiting import until

BODY = bytes(range(256)) * 40
OTHER = b"other" * 2048
Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FaultProxy]:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a").write_bytes(BODY)
    (tmp_path / "set" / "b").write_bytes(OTHER)
    with plain_http(tmp_path) as server, fault_proxy(server.endpoint) as started:
        yield started


def ask(proxy: FaultProxy, method: str = "GET", **headers: str) -> Answer:
    """Status, headers in lower case and body of set/a."""
    host = proxy.endpoint.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request(method, "/set/a", headers=headers)
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, named, answer.read()
    finally:
        connection.close()


REFUSED = {
    "slow_down": (503, b"SlowDown"),
    "throttled": (429, b"TooManyRequests"),
    "internal": (500, b"InternalError"),
    "expired": (403, b"ExpiredToken"),
    "denied": (403, b"AccessDenied"),
    "no_bucket": (404, b"NoSuchBucket"),
    "stale_not_found": (404, b"NoSuchKey"),
}
RAISED: dict[str, type[Exception] | tuple[type[Exception], ...]] = {
    "reset_before": ConnectionResetError,
    "lost_answer": ConnectionResetError,
    "reset_body": (ConnectionResetError, http.client.IncompleteRead),
    "half_body": http.client.IncompleteRead,
    "garbage": http.client.BadStatusLine,
    "huge_header": http.client.LineTooLong,
}
SENT = {
    "short_length": (200, BODY[: len(BODY) // 2]),
    "truncated_ok": (206, BODY[: len(BODY) // 2]),
    "slow_first_byte": (200, BODY),
    "ignored_range": (200, BODY),
    "other_object": (200, OTHER),
}
OWN = {"wrong_bytes", "stall_body", "gone", "redirect", "gzip"}
"""Each has a test of its own."""


def test_every_fault_is_tested() -> None:
    assert set(FAULTS) == {*REFUSED, *RAISED, *SENT, *OWN}


def test_what_meets_no_rule_is_passed_on(proxy: FaultProxy) -> None:
    status, headers, body = ask(proxy, Range="bytes=10-19", Authorization="secret")
    assert (status, body) == (206, BODY[10:20])
    assert headers["content-range"] == f"bytes 10-19/{len(BODY)}"
    (asked,) = proxy.asked
    assert (asked.method, asked.key, asked.done) == ("GET", "set/a", PASSED)
    assert asked.range == "bytes=10-19"
    assert asked.headers["Host"] in proxy.endpoint
    assert "secret" not in repr(asked)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(proxy: FaultProxy, name: str) -> None:
    proxy.fault(name)
    status, _, body = ask(proxy)
    assert status == REFUSED[name][0]
    assert b"<Code>%b</Code>" % REFUSED[name][1] in body
    assert ask(proxy)[2] == BODY


@pytest.mark.parametrize("name", RAISED)
def test_raised(proxy: FaultProxy, name: str) -> None:
    proxy.fault(name)
    with pytest.raises(RAISED[name]):
        ask(proxy)
    assert ask(proxy)[2] == BODY
    assert [asked.done for asked in proxy.asked] == [name, PASSED]


@pytest.mark.parametrize("name", SENT)
def test_sent(proxy: FaultProxy, name: str) -> None:
    proxy.fault(name, seconds=0.01, other="set/b")
    status, headers, body = ask(proxy)
    assert (status, body) == SENT[name]
    assert int(headers["content-length"]) == len(body)


def test_a_range_is_ignored(proxy: FaultProxy) -> None:
    proxy.fault("ignored_range")
    status, headers, body = ask(proxy, Range="bytes=10-19")
    assert (status, body) == (200, BODY)
    assert "content-range" not in headers


def test_one_bit_is_flipped(proxy: FaultProxy) -> None:
    proxy.fault("wrong_bytes")
    _, _, body = ask(proxy)
    changed = [a ^ b for a, b in zip(body, BODY, strict=True) if a != b]
    assert changed == [1]


def test_a_body_stalls_on_an_open_connection(proxy: FaultProxy) -> None:
    proxy.fault("stall_body", bytes=100)
    host, port = proxy.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 60) as connection:
        connection.sendall(b"GET /set/a HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while not received.endswith(BODY[:100]):
            received += connection.recv(4096)
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)


def test_gone(proxy: FaultProxy) -> None:
    proxy.fault("gone", seconds=600)
    with pytest.raises(ConnectionResetError):
        ask(proxy)
    with pytest.raises(ConnectionRefusedError):
        ask(proxy)


def test_back_on_the_same_port(proxy: FaultProxy) -> None:
    proxy.fault("gone", seconds=0.2)
    with pytest.raises(ConnectionResetError):
        ask(proxy)

    def is_back() -> bool:
        try:
            return ask(proxy)[2] == BODY
        except ConnectionError:
            return False

    assert until(is_back)


def test_redirect_and_encoding(proxy: FaultProxy) -> None:
    proxy.fault("redirect", location="http://127.0.0.2:9/x")
    proxy.fault("gzip", first=2)
    status, headers, _ = ask(proxy)
    assert (status, headers["location"]) == (307, "http://127.0.0.2:9/x")
    _, headers, body = ask(proxy)
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(body) == BODY


def test_a_rule_chooses_by_method_key_and_count(proxy: FaultProxy) -> None:
    proxy.fault("internal", method="HEAD|GET", key="set/.*", first=2, times=2)
    proxy.fault("denied", key="set/b", times=None)
    assert [ask(proxy)[0] for _ in range(4)] == [200, 500, 500, 200]
    assert ask(proxy, "HEAD")[0] == 200
    proxy.calm()
    assert proxy.asked == []
