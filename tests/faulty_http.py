"""A web server on loopback whose paths misbehave by a table.

`/fine/7` answers with bytes of its own; the first word of a path names a row of FAULTS. Every
request is recorded, and so is how many were under way at once, for each Host header.
"""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BLOCK = b"x" * 65536


def body_of(path: str) -> bytes:
    """What is found at a path, where it is found."""
    return f"the picture at {path} ".encode() * 20


class Answer(BaseHTTPRequestHandler):
    """One request; its server is a FaultyServer."""

    server: FaultyServer
    under_way: contextlib.ExitStack

    def do_GET(self) -> None:
        if self.path.startswith("http://"):
            # Asked as a proxy: answered as if it were everybody.
            self.path = "/" + self.path.split("/", 3)[3]
        host = self.headers.get("Host", "").partition(":")[0]
        with self.server.recording(self.path, host) as self.under_way:
            self.server.headers_seen.append(dict(self.headers))
            word, _, rest = self.path.strip("/").partition("/")
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                FAULTS[word](self, rest)
        self.close_connection = True

    def reply(self, data: bytes, status: int = 200, **headers: str) -> None:
        # Before the last byte: whoever has that may rightly begin the next request.
        self.under_way.close()
        self.begin(status, **{"Content-Length": str(len(data)), **headers})
        self.wfile.write(data)

    def begin(self, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def pause(self, seconds: float) -> None:
        """Do nothing, but not beyond the end of the test."""
        if self.server.closing.wait(seconds):
            raise ConnectionResetError

    def asked(self) -> int:
        """The how-manieth time this path is asked for."""
        return self.server.asked[self.path]

    def log_message(self, format: str, *args: object) -> None:
        pass


def fine(answer: Answer, rest: str) -> None:
    answer.reply(body_of(answer.path), Content_Type="image/jpeg")


def late(answer: Answer, rest: str) -> None:
    """/late/MILLISECONDS/..."""
    answer.pause(int(rest.split("/")[0]) / 1000)
    fine(answer, rest)


def company(answer: Answer, rest: str) -> None:
    """Fine as soon as two requests have been under way at once."""
    while answer.server.most[""] < 2:
        answer.pause(0.005)
    late(answer, "30")


def drip(answer: Answer, rest: str) -> None:
    answer.begin(Content_Length="100000")
    while True:
        answer.wfile.write(b".")
        answer.pause(0.05)


def drip_headers(answer: Answer, rest: str) -> None:
    answer.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        answer.wfile.write(b".")
        answer.pause(0.05)


def flaky(answer: Answer, rest: str) -> None:
    """/flaky/STATUS/TIMES/...: so often this status, then fine."""
    status, times = map(int, rest.split("/")[:2])
    if answer.asked() <= times:
        answer.reply(b"", status)
    else:
        fine(answer, rest)


def busy(answer: Answer, rest: str) -> None:
    """/busy/SECONDS/...: 429 once, asking for so long a pause."""
    if answer.asked() == 1:
        answer.reply(b"", 429, Retry_After=rest.split("/")[0])
    else:
        fine(answer, rest)


def endless(answer: Answer, rest: str) -> None:
    answer.begin(Content_Type="image/jpeg")
    while True:
        answer.wfile.write(BLOCK)
        answer.server.sent += len(BLOCK)


def endless_chunks(answer: Answer, rest: str) -> None:
    answer.protocol_version = "HTTP/1.1"
    answer.begin(Transfer_Encoding="chunked")
    while True:
        answer.wfile.write(b"%x\r\n%b\r\n" % (len(BLOCK), BLOCK))


def chunks(answer: Answer, rest: str) -> None:
    answer.protocol_version = "HTTP/1.1"
    answer.begin(Transfer_Encoding="chunked")
    data = body_of(answer.path)
    for start in range(0, len(data), 100):
        piece = data[start : start + 100]
        answer.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    answer.wfile.write(b"0\r\n\r\n")


def chunks_cut(answer: Answer, rest: str) -> None:
    answer.protocol_version = "HTTP/1.1"
    answer.begin(Transfer_Encoding="chunked")
    answer.wfile.write(b"64\r\nonly the beginning")


def short(answer: Answer, rest: str) -> None:
    """/short/TIMES/...: so often half the body, then all of it."""
    data = body_of(answer.path)
    answer.begin(Content_Length=str(len(data)))
    answer.wfile.write(data[: len(data) // 2] if answer.asked() <= int(rest[0]) else data)


def hops(answer: Answer, rest: str) -> None:
    """/hops/N/...: N redirects, then fine."""
    left, _, tail = rest.partition("/")
    target = f"/hops/{int(left) - 1}/{tail}" if int(left) > 1 else f"/fine/{tail}"
    answer.reply(b"", 302, Location=target)


def to(answer: Answer, rest: str) -> None:
    """/to/N: a redirect to the server's N-th place."""
    answer.reply(b"", 301, Location=answer.server.places[int(rest)])


def reset(answer: Answer, rest: str) -> None:
    answer.begin(Content_Length="100000")
    answer.wfile.write(b"a beginning")
    answer.wfile.flush()
    slam(answer)


def slam(answer: Answer) -> None:
    """Close so that the other side is told of a reset."""
    answer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    answer.connection.close()


def many_headers(answer: Answer, rest: str) -> None:
    answer.begin(**{f"X-{number}": "y" for number in range(500)})


def gzipped(answer: Answer, rest: str) -> None:
    answer.reply(gzip.compress(body_of(answer.path)), Content_Encoding="gzip")


def bomb(answer: Answer, rest: str) -> None:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = b"".join(squeeze.compress(BLOCK) for _ in range(40)) + squeeze.flush()
    answer.reply(data, Content_Encoding="gzip")


FAULTS: dict[str, Callable[[Answer, str], None]] = {
    "fine": fine,
    "late": late,
    "company": company,
    "drip": drip,
    "drip-headers": drip_headers,
    "hang": lambda answer, rest: answer.pause(600),
    "status": lambda answer, rest: answer.reply(b"", int(rest.split("/")[0])),
    "flaky": flaky,
    "busy": busy,
    "always-busy": lambda answer, rest: answer.reply(b"", 503, Retry_After=rest.split("/")[0]),
    "html": lambda answer, rest: answer.reply(b"<p>", Content_Type="text/html; charset=utf-8"),
    "json": lambda answer, rest: answer.reply(b"{}", Content_Type="application/ld+json"),
    "bytes": lambda answer, rest: answer.reply(
        body_of(answer.path), Content_Type="application/octet-stream"
    ),
    "typeless": lambda answer, rest: answer.reply(body_of(answer.path)),
    "svg": lambda answer, rest: answer.reply(b"<svg/>", Content_Type="image/svg+xml"),
    "endless": endless,
    "endless-chunks": endless_chunks,
    "huge": lambda answer, rest: answer.begin(Content_Length=str(1 << 40)),
    "chunks": chunks,
    "chunks-cut": chunks_cut,
    "short": short,
    "hops": hops,
    "loop": lambda answer, rest: answer.reply(b"", 307, Location=answer.path),
    "to": to,
    "nowhere": lambda answer, rest: answer.reply(b"", 302),
    "reset": reset,
    "slam": lambda answer, rest: slam(answer),
    "garbage": lambda answer, rest: answer.wfile.write(b"\x16\x03\x01 this is no HTTP\n" * 50),
    "long-header": lambda answer, rest: answer.begin(X_Long="y" * 100_000),
    "many-headers": many_headers,
    "gzip": gzipped,
    "gzip-cut": lambda answer, rest: answer.reply(
        gzip.compress(BLOCK)[:-20], Content_Encoding="gzip"
    ),
    "brotli": lambda answer, rest: answer.reply(b"?", Content_Encoding="br"),
    "bomb": bomb,
    "secret": lambda answer, rest: answer.reply(
        answer.headers.get("Authorization", "none").encode()
    ),
}


class FaultyServer(ThreadingHTTPServer):
    """Serves until closed, and remembers what was asked of it."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, certificate: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.scheme = "http"
        if certificate is not None:
            self.scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # Shaken hands with in a request's own thread, at its first read.
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
        self.closing = threading.Event()
        self.asked: Counter[str] = Counter()
        self.asked_at: list[tuple[float, str]] = []
        self.headers_seen: list[dict[str, str]] = []
        self.places: list[str] = []
        self.connections = 0
        self.sent = 0
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        """Requests under way at once, by Host header, and in all ("")."""
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def get_request(self) -> tuple[socket.socket, object]:
        self.connections += 1
        return super().get_request()

    def recording(self, path: str, host: str) -> contextlib.ExitStack:
        """Counts a request as under way until it is closed."""
        with self._lock:
            self.asked[path] += 1
            self.asked_at.append((time.monotonic(), path))
            for name in (host, ""):
                self.now[name] += 1
                self.most[name] = max(self.most[name], self.now[name])
        under_way = contextlib.ExitStack()
        under_way.callback(self._forget, host)
        return under_way

    def _forget(self, host: str) -> None:
        with self._lock:
            self.now[host] -= 1
            self.now[""] -= 1

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.server_port}/{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what half of these tests are about."""

    def close(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()
