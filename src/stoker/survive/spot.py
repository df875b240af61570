"""Spot notices: the cloud announces that it will take this machine.

Invariants: a provider is a row of PROVIDERS. Requests go to the machine's own metadata service and
nowhere else: no proxy, no redirect. A service that does not answer is asked again later; no answer
can end or delay a run.

    AWS     spot/instance-action, 404 until some 120 s before the end (IMDSv2: with a token)
    GCP     instance/preempted, FALSE until some 30 s before the end
    Azure   scheduledevents, an event Preempt or Terminate for this machine, some 30 s before
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from stoker.errors import BadRequest
from stoker.survive.stopping import StopRequest

ENDPOINT = "STOKER_METADATA_URL"
"""Environment variable: the URL of the metadata service, for tests."""
USUAL_ENDPOINT = "http://169.254.169.254"
TOKEN_PATH, TOKEN_LIFE_S = "/latest/api/token", 21600
AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
ANSWER_BYTES = 1 << 16
TIMEOUT_S = 2.0
SLOWEST_S = 60.0
"""Largest pause between two requests while the service does not answer."""


@dataclass(frozen=True)
class Notice:
    """A provider takes this machine `at` seconds since 1970. Raises ValueError for a bad time."""

    provider: str
    at: float

    def __post_init__(self) -> None:
        self.text()

    def text(self) -> str:
        clock = datetime.fromtimestamp(self.at, UTC).strftime("%H:%M:%S UTC")
        return f"spot notice: {self.provider} takes this machine at {clock}"


class Service:
    """The metadata service of this machine. Raises BadRequest where its URL is not one."""

    def __init__(self, url: str | None = None) -> None:
        url = url or os.environ.get(ENDPOINT, USUAL_ENDPOINT)
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            self._host = ""
        if not self._host or parts.scheme != "http":
            raise BadRequest(f"{ENDPOINT} must be a URL like {USUAL_ENDPOINT}, not {url!r}")
        self.token = ""

    def ask(self, path: str, headers: Mapping[str, str], method: str = "GET") -> tuple[int, str]:
        """The status and text of an answer. Raises OSError or HTTPException where there is none."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_BYTES).decode(errors="replace")
        finally:
            connection.close()

    def ask_with_token(self, path: str) -> tuple[int, str]:
        """`ask` with the token that AWS requires, and may let expire at any time."""
        if not self.token:
            life = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_LIFE_S)}
            status, token = self.ask(TOKEN_PATH, life, "PUT")
            if status != 200:
                return status, ""
            self.token = token
        status, text = self.ask(path, {"X-aws-ec2-metadata-token": self.token})
        if status == 401:
            self.token = ""
        return status, text


def aws(service: Service) -> float | None:
    status, text = service.ask_with_token("/latest/meta-data/spot/instance-action")
    if status != 200:
        return None
    end = datetime.strptime(json.loads(text)["time"], "%Y-%m-%dT%H:%M:%SZ")
    return end.replace(tzinfo=UTC).timestamp()


def gcp(service: Service) -> float | None:
    path = "/computeMetadata/v1/instance/preempted"
    status, text = service.ask(path, {"Metadata-Flavor": "Google"})
    return time.time() + 30 if status == 200 and text.strip() == "TRUE" else None


def azure(service: Service) -> float | None:
    headers = {"Metadata": "true"}
    status, text = service.ask("/metadata/scheduledevents?api-version=2020-07-01", headers)
    if status != 200:
        return None
    ends = [e for e in json.loads(text)["Events"] if e["EventType"] in ("Preempt", "Terminate")]
    if not ends:
        return None
    # The list covers a whole group of machines; without our own name, every event counts.
    status, name = service.ask(AZURE_NAME, headers)
    name = name.strip()
    ours = [e for e in ends if status != 200 or name in e.get("Resources", [name])]
    times = [parsedate_to_datetime(e["NotBefore"]).timestamp() for e in ours if e.get("NotBefore")]
    return min(times) if times else time.time() + 30 if ours else None


@dataclass(frozen=True)
class Provider:
    """How to ask a provider, how often, and how long before the end its notice comes."""

    end_time: Callable[[Service], float | None]
    """When the machine ends, in seconds since 1970; None without a notice."""
    every_s: float
    warning_s: float


PROVIDERS = {
    "aws": Provider(aws, 5.0, 120.0),
    "gcp": Provider(gcp, 1.0, 30.0),
    "azure": Provider(azure, 1.0, 30.0),
}

DMI_ENTRIES = {
    "aws": ("sys_vendor", "Amazon EC2"),
    "gcp": ("product_name", "Google Compute Engine"),
    "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
}
"""File and text by which a provider's machine is recognised, without any request."""


def provider_here(setting: str, dmi: Path = Path("/sys/class/dmi/id")) -> str | None:
    """The provider that the recipe's `spot_notice` names, or with auto this machine's; or None."""
    if setting != "auto":
        return None if setting == "off" else setting
    for name, (file, text) in DMI_ENTRIES.items():
        with suppress(OSError):
            if (dmi / file).read_text().strip() == text:
                return name
    return None


@contextmanager
def watching(setting: str, stop: StopRequest) -> Iterator[None]:
    """Until the block ends, a notice requests a stop, where there is a provider to ask."""
    with ExitStack() as leaving:
        if provider := provider_here(setting):
            watch = NoticeWatch(provider, Service(), stop)
            leaving.callback(watch.close)
            watch.begin()
        yield


@dataclass
class NoticeWatch:
    """Asks a provider at intervals, in its own thread, until there is a notice."""

    name: str
    service: Service
    stop: StopRequest
    failures: int = 0
    """Requests in a row without a valid answer."""
    _over: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        threading.Thread(target=self._watch, name="stoker-spot", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def look(self) -> Notice | None:
        """Ask once. The notice; None where there is none, or no valid answer."""
        try:
            at = PROVIDERS[self.name].end_time(self.service)
            notice = None if at is None else Notice(self.name, at)
        except Exception:  # a service may answer anything; it is asked again
            self.failures += 1
            self.service.token = ""
            return None
        self.failures = 0
        return notice

    def _watch(self) -> None:
        every, pause = PROVIDERS[self.name].every_s, 0.0
        while not self._over.wait(pause):
            if notice := self.look():
                self.stop.request(notice.text())
                return
            if self.failures == 3:
                self.stop.notes.append(f"no answer from {self.name}: no spot notices for now")
            pause = min(every * 2 ** min(max(self.failures - 3, 0), 10), SLOWEST_S)
