"""An HTTP proxy in front of an object store that misbehaves by a table.

A request is passed on as it came, with the Host header that its sender signed. Rules choose by
method, key and count which requests meet a fault: a row of FAULTS. Every request is recorded, with
what was done to it, but never with its Authorization.
"""

from __future__ import annotations

import gzip
import http.client
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from ports import free_port
from stores.web_folder import RANGE, part_of

HIDDEN = {"authorization", "x-amz-security-token", "cookie"}
PASSED = "passed"
HOPS = {"connection", "keep-alive", "transfer-encoding"}
"""Headers of one connection, not of what it carries."""


@dataclass
class Rule:
    """Which requests meet a fault."""

    fault: str
    """A row of FAULTS."""
    method: str = "GET"
    """A regular expression, as `key` is."""
    key: str = ".*"
    """All of BUCKET/KEY, without what follows a question mark."""
    first: int = 1
    """The matching request that is the first to meet it."""
    times: int | None = 1
    """How many meet it; None: all from then on."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the fault asks for: seconds, bytes, location, or other (BUCKET/KEY)."""
    seen: int = 0

    def meets(self, method: str, key: str) -> bool:
        """Whether this request meets the fault; counts it where it matches."""
        if not (re.fullmatch(self.method, method) and re.fullmatch(self.key, key)):
            return False
        self.seen += 1
        return self.seen >= self.first and (
            self.times is None or self.seen < self.first + self.times
        )


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    method: str
    key: str
    query: str
    range: str | None
    headers: dict[str, str]
    done: str
    """A fault, or `passed`."""


@dataclass(frozen=True)
class Reply:
    """What the store answered."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes

    def without(self, *names: str) -> list[tuple[str, str]]:
        low = {name.lower() for name in names}
        return [(name, value) for name, value in self.headers if name.lower() not in low]


class Exchange(BaseHTTPRequestHandler):
    """One connection; its server is a Listener."""

    server: Listener
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_any(self) -> None:
        proxy = self.server.proxy
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        key = unquote(parts.path).lstrip("/")
        rule = proxy.choose(self, key, parts.query)
        try:
            if rule is None:
                self.send(self.ask())
            else:
                FAULTS[rule.fault](self, rule.options)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def do_GET(self) -> None:
        self.handle_any()

    def do_HEAD(self) -> None:
        self.handle_any()

    def do_PUT(self) -> None:
        self.handle_any()

    def do_POST(self) -> None:
        self.handle_any()

    def do_DELETE(self) -> None:
        self.handle_any()

    def ask(self) -> Reply:
        """The store's own answer to this request."""
        connection = http.client.HTTPConnection(self.server.proxy.upstream, timeout=120)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in HOPS:
                    connection.putheader(name, value)
            connection.endheaders(self.body or None)
            answer = connection.getresponse()
            return Reply(answer.status, answer.reason, answer.getheaders(), answer.read())
        finally:
            connection.close()

    def send(self, reply: Reply, body: bytes | None = None, length: int | None = None) -> None:
        """Send an answer: with another body, or with another length than that of its body."""
        body = reply.body if body is None else body
        self.begin(reply.status, reply.without("content-length"), self.length(reply, body, length))
        self.wfile.write(body)

    def length(self, reply: Reply, body: bytes, length: int | None) -> int:
        if self.command == "HEAD":
            return next((int(v) for n, v in reply.headers if n.lower() == "content-length"), 0)
        return len(body) if length is None else length

    def begin(self, status: int, headers: list[tuple[str, str]], length: int) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in HOPS:
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def refuse(self, status: int, code: str) -> None:
        """An error as S3 words it."""
        text = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code></Error>'
        body = b"" if self.command == "HEAD" else text.encode()
        self.begin(status, [("Content-Type", "application/xml")], len(body))
        self.wfile.write(body)

    def slam(self) -> None:
        """Close so that the other side is told of a reset."""
        self.wfile.flush()
        reset = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        self.server.forget(self.connection)
        self.connection.close()
        raise ConnectionResetError

    def pause(self, seconds: float) -> None:
        """Do nothing, but not beyond the end of the test."""
        if self.server.proxy.closing.wait(seconds):
            raise ConnectionResetError

    def log_message(self, format: str, *args: Any) -> None:
        pass


def reset_body(exchange: Exchange, options: dict[str, Any]) -> None:
    """RST after `bytes` of the body, half of it where that is not said."""
    reply = exchange.ask()
    exchange.send(reply, reply.body[: cut(reply, options)], len(reply.body))
    exchange.slam()


def cut(reply: Reply, options: dict[str, Any]) -> int:
    return int(options.get("bytes", len(reply.body) // 2))


def half_body(exchange: Exchange, options: dict[str, Any]) -> None:
    reply = exchange.ask()
    exchange.send(reply, reply.body[: cut(reply, options)], len(reply.body))
    exchange.close_connection = True


def short_length(exchange: Exchange, options: dict[str, Any]) -> None:
    """A shorter body with the Content-Length of that."""
    reply = exchange.ask()
    exchange.send(reply, reply.body[: cut(reply, options)])


def truncated_ok(exchange: Exchange, options: dict[str, Any]) -> None:
    """206 with fewer bytes than Content-Range says."""
    reply = exchange.ask()
    exchange.send(Reply(206, "Partial Content", reply.headers, reply.body[: cut(reply, options)]))


def wrong_bytes(exchange: Exchange, options: dict[str, Any]) -> None:
    reply = exchange.ask()
    body = bytearray(reply.body)
    if body:
        body[len(body) // 2] ^= 1
    exchange.send(reply, bytes(body))


def other_object(exchange: Exchange, options: dict[str, Any]) -> None:
    """The same part of another object, `other`, under the headers of this one."""
    reply = exchange.ask()
    body = exchange.server.proxy.read(str(options["other"]))
    if found := RANGE.match(exchange.headers.get("Range", "")):
        start, end = part_of(len(body), found[1], found[2])
        body = body[start:end]
    exchange.send(reply, body)


def slow_first_byte(exchange: Exchange, options: dict[str, Any]) -> None:
    exchange.pause(float(options.get("seconds", 2)))
    exchange.send(exchange.ask())


def stall_body(exchange: Exchange, options: dict[str, Any]) -> None:
    """Half of the body, then nothing on an open connection."""
    reply = exchange.ask()
    exchange.send(reply, reply.body[: cut(reply, options)], len(reply.body))
    exchange.wfile.flush()
    exchange.pause(float(options.get("seconds", 600)))
    exchange.slam()


def gone(exchange: Exchange, options: dict[str, Any]) -> None:
    """Resets this connection and refuses all others for so many seconds."""
    exchange.server.forget(exchange.connection)
    exchange.server.proxy.go(float(options.get("seconds", 1)))
    exchange.slam()


def lost_answer(exchange: Exchange, options: dict[str, Any]) -> None:
    """The store does what is asked, and its answer is lost: the connection is reset, or closed
    where `closed` is set, or the answer is another `status`."""
    exchange.ask()
    if "status" in options:
        exchange.refuse(int(options["status"]), "InternalError")
    elif options.get("closed"):
        exchange.close_connection = True
    else:
        exchange.slam()


def ignored_range(exchange: Exchange, options: dict[str, Any]) -> None:
    """200 with the whole object. A client signs its Range: the proxy reads the object itself."""
    reply = exchange.ask()
    whole = exchange.server.proxy.read(unquote(urlsplit(exchange.path).path).lstrip("/"))
    exchange.send(Reply(200, "OK", reply.without("content-range"), whole))


def garbage(exchange: Exchange, options: dict[str, Any]) -> None:
    exchange.wfile.write(b"\x16\x03\x01 this is no HTTP\n" * 50)
    exchange.close_connection = True


def redirect(exchange: Exchange, options: dict[str, Any]) -> None:
    location = str(options.get("location", "http://127.0.0.2:9/elsewhere"))
    exchange.begin(307, [("Location", location)], 0)


def huge_header(exchange: Exchange, options: dict[str, Any]) -> None:
    reply = exchange.ask()
    filler = [("X-Long", "y" * int(options.get("bytes", 1_000_000)))]
    exchange.send(Reply(reply.status, reply.reason, reply.headers + filler, reply.body))


def gzipped(exchange: Exchange, options: dict[str, Any]) -> None:
    reply = exchange.ask()
    headers = [*reply.headers, ("Content-Encoding", "gzip")]
    exchange.send(Reply(reply.status, reply.reason, headers, gzip.compress(reply.body)))


def refusal(status: int, code: str) -> Callable[[Exchange, dict[str, Any]], None]:
    return lambda exchange, options: exchange.refuse(status, code)


FAULTS: dict[str, Callable[[Exchange, dict[str, Any]], None]] = {
    "slow_down": refusal(503, "SlowDown"),
    "throttled": refusal(429, "TooManyRequests"),
    "internal": refusal(500, "InternalError"),
    "expired": refusal(403, "ExpiredToken"),
    "denied": refusal(403, "AccessDenied"),
    "no_bucket": refusal(404, "NoSuchBucket"),
    "stale_not_found": refusal(404, "NoSuchKey"),
    "reset_before": lambda exchange, options: exchange.slam(),
    "reset_body": reset_body,
    "half_body": half_body,
    "short_length": short_length,
    "truncated_ok": truncated_ok,
    "wrong_bytes": wrong_bytes,
    "other_object": other_object,
    "slow_first_byte": slow_first_byte,
    "stall_body": stall_body,
    "gone": gone,
    "lost_answer": lost_answer,
    "ignored_range": ignored_range,
    "garbage": garbage,
    "redirect": redirect,
    "huge_header": huge_header,
    "gzip": gzipped,
}


class Listener(ThreadingHTTPServer):
    """The proxy's port, from its opening to its closing."""

    daemon_threads = True
    request_queue_size = 256
    allow_reuse_address = True

    def __init__(self, proxy: FaultProxy, address: str, port: int) -> None:
        super().__init__((address, port), Exchange)
        self.proxy = proxy
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, client = super().get_request()
        with self._lock:
            self._open.add(connection)
        return connection, client

    def forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def shutdown_request(self, request: Any) -> None:
        self.forget(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what half of these tests are about."""

    def close(self) -> None:
        """Refuse connections, and end those that are open."""
        self.shutdown()
        self.server_close()
        with self._lock:
            left = list(self._open)
        for connection in left:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class FaultProxy:
    """Passes requests on to a store until closed. `read` gives all bytes of BUCKET/KEY, for the
    faults that answer with what was not asked for; without it the store is asked unsigned."""

    def __init__(
        self,
        upstream: str,
        address: str = "127.0.0.1",
        read: Callable[[str], bytes] | None = None,
    ) -> None:
        self.read = read or self._read
        self.upstream = urlsplit(upstream).netloc
        self.rules: list[Rule] = []
        self.asked: list[Asked] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._address = address
        self._listener: Listener | None = Listener(self, address, free_port())
        self._port: int = self._listener.server_port
        self._door = threading.Lock()
        self._back: list[threading.Thread] = []
        self.endpoint = f"http://{address}:{self._port}"

    def _read(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(self.upstream, timeout=120)
        try:
            connection.request("GET", "/" + quote(path))
            return connection.getresponse().read()
        finally:
            connection.close()

    def fault(self, name: str, **words: Any) -> Rule:
        """Add a rule: method, key, first and times choose requests; the rest are options."""
        assert name in FAULTS, name
        chosen = {
            word: words.pop(word) for word in ("method", "key", "first", "times") if word in words
        }
        rule = Rule(name, options=words, **chosen)
        with self._lock:
            self.rules.append(rule)
        return rule

    def calm(self) -> None:
        """No more faults; what was asked is forgotten."""
        with self._lock:
            self.rules.clear()
            self.asked.clear()

    def choose(self, exchange: Exchange, key: str, query: str) -> Rule | None:
        """The first rule that this request meets; records the request."""
        with self._lock:
            met = [rule for rule in self.rules if rule.meets(exchange.command, key)]
            rule = met[0] if met else None
            shown = {n: v for n, v in exchange.headers.items() if n.lower() not in HIDDEN}
            done = rule.fault if rule else PASSED
            asked = exchange.headers.get("Range")
            self.asked.append(Asked(exchange.command, key, query, asked, shown, done))
        return rule

    def go(self, seconds: float) -> None:
        """Refuse connections for so long, and come back on the same port."""
        back = threading.Thread(target=self._away, args=(seconds,), daemon=True)
        self._back.append(back)
        with self._door:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
            back.start()

    def _away(self, seconds: float) -> None:
        self.closing.wait(seconds)
        with self._door:
            if not self.closing.is_set():
                self._listener = Listener(self, self._address, self._port)

    def close(self) -> None:
        self.closing.set()
        with self._door:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        for thread in self._back:
            if thread.is_alive():
                thread.join()


@contextmanager
def fault_proxy(
    upstream: str, address: str = "127.0.0.1", read: Callable[[str], bytes] | None = None
) -> Iterator[FaultProxy]:
    """A proxy in front of the store at this endpoint."""
    proxy = FaultProxy(upstream, address, read)
    try:
        yield proxy
    finally:
        proxy.close()
