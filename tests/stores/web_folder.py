"""A plain web server over a folder: GET and HEAD, ranges, etags and conditions; nothing else."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RANGE = re.compile(r"bytes=(\d*)-(\d*)$")


class File(SimpleHTTPRequestHandler):
    """One request; its server is a WebFolder."""

    server: WebFolder
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append((self.command, self.path, asked))
        file = Path(self.translate_path(self.path))
        if not file.is_file():
            self._begin(404, {}, 0)
            return
        data = file.read_bytes()
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        headers = {"ETag": tag, "Accept-Ranges": "bytes"}
        headers["Last-Modified"] = self.date_time_string(file.stat().st_mtime)
        if self.headers.get("If-Match", tag) != tag:
            self._begin(412, headers, 0)
            return
        status = 200
        if asked and (found := RANGE.match(asked)):
            start, end = part_of(len(data), found[1], found[2])
            if start >= end:
                self._begin(416, {"Content-Range": f"bytes */{len(data)}"}, 0)
                return
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            data, status = data[start:end], 206
        self._begin(status, headers, len(data))
        if with_body:
            self.wfile.write(data)

    def _begin(self, status: int, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def part_of(length: int, first: str, last: str) -> tuple[int, int]:
    """Start and end of a range: 0-99, 100- or -20."""
    if not first:
        return max(0, length - int(last or 0)), length
    return int(first), min(length, int(last) + 1) if last else length


class WebFolder(ThreadingHTTPServer):
    """Serves until closed, and remembers what was asked of it."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        self.asked: list[tuple[str, str, str | None]] = []
        """Method, path and range of each request."""
        root = str(folder)

        def handler(*arguments: Any) -> File:
            return File(*arguments, directory=root)

        make: Callable[..., File] = handler
        super().__init__((address, 0), make)
        self.endpoint = f"http://{address}:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is not an error of the server."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
