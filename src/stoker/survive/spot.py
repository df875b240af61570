"""Notices that a rented machine is about to be taken away.

Invariants: a provider is a row: what to ask, with which headers, how to read the answer. Questions
go to the machine's own metadata service and nowhere else: no proxy, no redirect. A service that
does not answer is asked again later; it never disturbs the run.

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
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from stoker.errors import BadRequest
from stoker.survive.stopping import StopRequest

ENDPOINT = "STOKER_METADATA_URL"
"""Where the metadata service answers, if not where all providers have it."""
USUAL_ENDPOINT = "http://169.254.169.254"
TOKEN_PATH, TOKEN_LIFE_S = "/latest/api/token", 21600
AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
ANSWER_BYTES = 1 << 16
PATIENCE_S = 2.0
SLOWEST_S = 60.0
"""How far apart questions get when nobody answers."""


@dataclass(frozen=True)
class Notice:
    """The machine goes at this time (seconds since 1970)."""

    provider: str
    at: float

    def __post_init__(self) -> None:
        self.words()

    def words(self) -> str:
        clock = datetime.fromtimestamp(self.at, UTC).strftime("%H:%M:%S UTC")
        return f"spot notice: {self.provider} takes this machine at {clock}"


class Service:
    """The metadata service of this machine."""

    def __init__(self, url: str | None = None) -> None:
        url = url or os.environ.get(ENDPOINT, USUAL_ENDPOINT)
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            self._host = ""
        if not self._host or parts.scheme != "http":
            raise BadRequest(f"{ENDPOINT} must look like {USUAL_ENDPOINT}, not {url!r}")
        self._token = ""

    def ask(self, path: str, headers: Mapping[str, str], method: str = "GET") -> tuple[int, str]:
        """Status and text of an answer; OSError or HTTPException where there is none."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_BYTES).decode(errors="replace")
        finally:
            connection.close()

    def ask_with_token(self, path: str) -> tuple[int, str]:
        """The same for AWS, which wants a token and forgets it now and then."""
        if not self._token:
            life = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_LIFE_S)}
            status, self._token = self.ask(TOKEN_PATH, life, "PUT")
            if status != 200:
                self.forget_token()
                return status, ""
        status, text = self.ask(path, {"X-aws-ec2-metadata-token": self._token})
        if status == 401:
            self.forget_token()
        return status, text

    def forget_token(self) -> None:
        self._token = ""


def aws(service: Service) -> float | None:
    status, text = service.ask_with_token("/latest/meta-data/spot/instance-action")
    if status != 200:
        return None
    told = datetime.strptime(json.loads(text)["time"], "%Y-%m-%dT%H:%M:%SZ")
    return told.replace(tzinfo=UTC).timestamp()


def gcp(service: Service) -> float | None:
    path = "/computeMetadata/v1/instance/preempted"
    status, text = service.ask(path, {"Metadata-Flavor": "Google"})
    return time.time() + 30 if status == 200 and text.strip() == "TRUE" else None


def azure(service: Service) -> float | None:
    headers = {"Metadata": "true"}
    status, text = service.ask("/metadata/scheduledevents?api-version=2020-07-01", headers)
    if status != 200:
        return None
    ours = [e for e in json.loads(text)["Events"] if e["EventType"] in ("Preempt", "Terminate")]
    if not ours:
        return None
    # The list is that of a whole group of machines.
    status, name = service.ask(AZURE_NAME, headers)
    ends = [e for e in ours if status != 200 or name.strip() in e.get("Resources", [name.strip()])]
    times = [parsedate_to_datetime(e["NotBefore"]).timestamp() for e in ends if e.get("NotBefore")]
    return min(times) if times else time.time() + 30 if ends else None


@dataclass(frozen=True)
class Provider:
    """Who to ask, how often, and how much time is left then."""

    look: Callable[[Service], float | None]
    every_s: float
    warning_s: float


PROVIDERS = {
    "aws": Provider(aws, 5.0, 120.0),
    "gcp": Provider(gcp, 1.0, 30.0),
    "azure": Provider(azure, 1.0, 30.0),
}

NAME_PLATES = {
    "aws": ("sys_vendor", "Amazon EC2"),
    "gcp": ("product_name", "Google Compute Engine"),
    "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
}
"""What a provider's machines say of themselves, without asking anybody."""


def provider_here(wanted: str, plates: Path = Path("/sys/class/dmi/id")) -> str | None:
    """The provider to watch: the one named, or the one whose machine this is."""
    if wanted != "auto":
        return None if wanted == "off" else wanted
    for name, (file, says) in NAME_PLATES.items():
        try:
            if (plates / file).read_text().strip() == says:
                return name
        except OSError:
            continue
    return None


@contextmanager
def watching(wanted: str, stop: StopRequest) -> Iterator[None]:
    """Watch for a notice, where there is a provider to ask, until the block ends. A notice requests
    a stop."""
    provider = provider_here(wanted)
    if provider is None:
        yield
        return
    watch = NoticeWatch(provider, Service(), stop)
    watch.begin()
    try:
        yield
    finally:
        watch.close()


@dataclass
class NoticeWatch:
    """Asks a provider now and then, in a thread of its own, until it says that the end is near."""

    name: str
    service: Service
    stop: StopRequest
    silent: int = 0
    """Questions in a row that were not answered."""
    _over: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        threading.Thread(target=self._watch, name="stoker-spot", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def look(self) -> Notice | None:
        """Ask once."""
        try:
            at = PROVIDERS[self.name].look(self.service)
            notice = None if at is None else Notice(self.name, at)
        except Exception:  # whatever a service may answer, the next question is asked
            self.silent += 1
            self.service.forget_token()
            return None
        self.silent = 0
        return notice

    def _watch(self) -> None:
        every = PROVIDERS[self.name].every_s
        pause = 0.0
        while not self._over.wait(pause):
            notice = self.look()
            if notice:
                self.stop.request(notice.words())
                return
            if self.silent == 3:
                self.stop.notes.append(f"nobody answers for {self.name}: no spot notices")
            pause = min(every * 2 ** min(max(self.silent - 3, 0), 10), SLOWEST_S)
