"""A web server on loopback over a folder that writes down what it sends, as slowly as it is told.

Invariants: it answers GET and HEAD, with ranges, from several threads. It sleeps `latency_s` before
each answer. `sent` has an entry for each answered GET.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

RANGE = re.compile(r"bytes=(\d+)-(\d+)$")


@dataclass(frozen=True)
class Sent:
    """An answer with content."""

    path: str
    is_part: bool
    bytes: int


class FileRequest(SimpleHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        server = cast(SetServer, self.server)
        time.sleep(server.latency_s)
        file = Path(self.translate_path(self.path))
        if not file.is_file():
            self._begin(404, {}, 0)
            return
        length = file.stat().st_size
        headers = {"Last-Modified": self.date_time_string(file.stat().st_mtime)}
        begin, end, status = 0, length, 200
        if asked := RANGE.match(self.headers.get("Range", "")):
            begin, end, status = int(asked[1]), min(int(asked[2]) + 1, length), 206
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{length}"
        self._begin(status, headers, end - begin)
        if with_body:
            server.sent.append(Sent(self.path, status == 206, end - begin))
            with file.open("rb") as opened:
                opened.seek(begin)
                self.wfile.write(opened.read(end - begin))

    def _begin(self, status: int, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


class SetServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder: Path, latency_s: float) -> None:
        self.latency_s, self.sent = latency_s, list[Sent]()
        super().__init__(("127.0.0.1", 0), partial(FileRequest, directory=str(folder)))
        self.endpoint = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is not an error of the server."""

    def shards(self) -> list[Sent]:
        """The answers to requests for shards, whole."""
        return [one for one in self.sent if one.path.endswith(".tar") and not one.is_part]

    def images(self) -> list[Sent]:
        """The answers to requests for parts of shards."""
        return [one for one in self.sent if one.path.endswith(".tar") and one.is_part]


@contextmanager
def served(folder: Path, latency_s: float = 0.0) -> Iterator[SetServer]:
    """A server over a folder, on a free port of loopback."""
    server = SetServer(folder, latency_s)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
