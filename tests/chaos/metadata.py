"""A metadata service on loopback that answers like three providers.

The real ones exist only on rented machines; this one follows their published interfaces: IMDSv2
with its token, Google's `instance/preempted`, Azure's `scheduledevents`.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MACHINE = "this-machine"


class Metadata:
    """Serves on a port of its own until closed; `notice` announces the end."""

    def __init__(self) -> None:
        service = self
        self.end_at: float | None = None
        self.told_at: float | None = None
        """When somebody was first told of it."""
        self.asked = 0
        self.machine: dict[str, str] = {}
        """What it says of the machine, by the last parts of a path."""
        self._tokens: set[str] = set()

        class Answers(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                token = secrets.token_hex(8)
                service._tokens.add(token)
                self.answer(200, token)

            def do_GET(self) -> None:
                service.asked += 1
                end = service.end_at
                status, text = service.answer(self.path, dict(self.headers), end)
                if end is not None and status == 200 and service.told_at is None:
                    service.told_at = time.time()
                self.answer(status, text)

            def answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def notice(self, seconds: float) -> float:
        """The machine goes in so many seconds; when that is."""
        self.end_at = time.time() + seconds
        return self.end_at

    def withdraw(self) -> None:
        """Nothing was ever announced."""
        self.end_at = self.told_at = None

    def is_allowed(self, path: str, headers: dict[str, str]) -> bool:
        """Whether a request has the header that its provider requires."""
        if path.startswith("/latest/"):
            return headers.get("X-aws-ec2-metadata-token") in self._tokens
        if path.startswith("/computeMetadata/"):
            return headers.get("Metadata-Flavor") == "Google"
        return headers.get("Metadata") == "true"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, headers: dict[str, str], end: float | None) -> tuple[int, str]:
        if known := next((text for name, text in self.machine.items() if name in path), None):
            return (200, known) if self.is_allowed(path, headers) else (401, "")
        if path == "/latest/meta-data/spot/instance-action":
            if headers.get("X-aws-ec2-metadata-token") not in self._tokens:
                return 401, ""
            if end is None:
                return 404, ""
            at = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            return 200, json.dumps({"action": "terminate", "time": at})
        if path == "/computeMetadata/v1/instance/preempted":
            ours = headers.get("Metadata-Flavor") == "Google"
            return (200, "TRUE" if end else "FALSE") if ours else (403, "")
        if headers.get("Metadata") != "true":
            return 400, ""
        if path.startswith("/metadata/instance/compute/name"):
            return 200, MACHINE
        event = {"EventType": "Preempt", "Resources": [MACHINE], "EventId": "1"}
        if end:
            event["NotBefore"] = format_datetime(datetime.fromtimestamp(end, UTC), usegmt=True)
        return 200, json.dumps({"DocumentIncarnation": 1, "Events": [event] if end else []})
