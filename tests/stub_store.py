"""A server on loopback that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Question:
    """A request."""

    method: str
    path: str
    """With its query."""
    headers: dict[str, str]
    """By small names."""


@dataclass(frozen=True)
class Answer:
    """What is sent back. A body in pieces may be endless."""

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    headers: dict[str, str] = field(default_factory=dict)


class StubStore(ThreadingHTTPServer):
    """Serves until closed."""

    daemon_threads = True

    def __init__(self, answer: Callable[[Question], Answer], address: str) -> None:
        super().__init__((address, 0), _Exchange)
        self.answer = answer
        self.asked: list[Question] = []
        self.sent_bytes = 0
        """Of bodies in pieces."""
        self.closing = threading.Event()
        self.endpoint = f"http://{address}:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away."""


class _Exchange(BaseHTTPRequestHandler):
    server: StubStore
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_any(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        question = Question(self.command, self.path, headers)
        self.server.asked.append(question)
        answer = self.server.answer(question)
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if isinstance(answer.body, bytes):
            if "Content-Length" not in answer.headers:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else answer.body)
            return
        self.close_connection = True
        self.end_headers()
        with suppress(OSError):
            for piece in answer.body:
                if self.server.closing.is_set():
                    break
                self.wfile.write(piece)
                self.server.sent_bytes += len(piece)

    def log_message(self, format: str, *args: Any) -> None:
        pass


for _method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
    setattr(_Exchange, f"do_{_method}", _Exchange.handle_any)


@contextmanager
def stub_store(
    answer: Callable[[Question], Answer], address: str = "127.0.0.1"
) -> Iterator[StubStore]:
    """A server that answers by this function."""
    server = StubStore(answer, address)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def s3_error(status: int, code: str = "") -> Answer:
    """A refusal in the words of S3."""
    return Answer(status, f"<Error><Code>{code}</Code></Error>".encode() if code else b"")
