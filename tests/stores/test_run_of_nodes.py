"""Two machines that share nothing but a store train one run; one is killed and comes back empty."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chaos.trainers import assert_bit_equal
from integration.namespaces import Cluster, Machine, ip
from integration.namespaces import missing as missing_namespaces
from object_store import Gateway, ceph, missing_ceph
from ports import free_port
from stoker.run.directory import Run
from tiny_runs import tiny_set

pytest.importorskip("obstore", reason="no obstore: pip install obstore")
no_machines = missing_namespaces() or missing_ceph()
pytestmark = [
    pytest.mark.alone,
    pytest.mark.slow,
    pytest.mark.rotates(6),
    pytest.mark.skipif(no_machines is not None, reason=no_machines or ""),
    pytest.mark.timeout(900),
]
ADDRESS = "10.77.0.100"
FLAGS = (
    "--model resnet9_w2 --batch-size 12 --image-size 8 --crop pad --crop-pad 1 --crop-pct 1 "
    "--threads 1 --no-rehearse --no-report --checkpoint-interval 1 --epochs 60 --eval-every 30"
)
STEPS = 60 * 60 // 12
COPY = """
import sys
from stoker.survive.remote.open import local_copy
print(local_copy(sys.argv[1], checkpoints=True))
"""
COMMITTED = """
import sys, time
from stoker.stores.client import StoreClient
from stoker.stores.location import location_of
from stoker.survive.remote.open import content_of
objects = StoreClient(location_of(sys.argv[1]))
while not content_of(objects).checkpoints:
    time.sleep(0.2)
"""


@dataclass
class Nodes:
    """Machines with disks of their own, and the store that they reach."""

    machines: list[Machine]
    server: Gateway
    root: Path
    bucket: str
    host: int = 0
    port: int = 0

    def cache(self, number: int) -> Path:
        return self.root / f"disk-{self.machines[number].name}"

    def start(self, number: int, *words: str) -> subprocess.Popen[str]:
        """A command on a machine."""
        variables = {
            **self.server.variables,
            "STOKER_CACHE": str(self.cache(number)),
            "STOKER_LEASE_S": "4",
            "STOKER_FAULTS": json.dumps(self.faults() if words[0] == "train" else []),
        }
        machine = self.machines[number]
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            return machine.start(words, self.root, self.root / f"{machine.name}.out")

    def faults(self) -> list[dict[str, object]]:
        """Steps that take a while, and a stop in mid-run until a file exists."""
        stall = {"fault": "stall", "at": "forward"}
        till = {"seconds": 300, "count": 60, "till": str(self.root / "go on")}
        return [{**stall, "seconds": 0.03, "again": True}, {**stall, **till}]

    def train(self, number: int) -> subprocess.Popen[str]:
        meeting = f"{self.machines[self.host].address}:{self.port}"
        place = ("train", f"s3://{self.bucket}/set", "--run", f"s3://{self.bucket}/run")
        nodes = ("--nodes", "2", "--rendezvous", meeting, "--yes")
        return self.start(number, *place, *FLAGS.split(), *nodes)

    def everything(self) -> str:
        logs = [*self.root.glob("*.out"), *self.root.rglob("launcher-*.log")]
        return "\n".join(f"--- {path}\n{path.read_text()[-3000:]}" for path in logs)

    def call(self, script: str, *words: str) -> str:
        """What a script prints that runs where the store can be reached."""
        inside = ["ip", "netns", "exec", self.machines[0].space, sys.executable, "-c", script]
        cache = {"STOKER_CACHE": str(self.root / "reader")}
        return subprocess.run(
            [*inside, f"s3://{self.bucket}/run", *words],
            check=True,
            env={**os.environ, **self.server.variables, **cache},
            timeout=180,
            capture_output=True,
            text=True,
        ).stdout.strip()

    def await_commit(self) -> None:
        """Wait until the store has a checkpoint."""
        self.call(COMMITTED)

    def copy(self) -> Run:
        """What a machine sees that has only the store."""
        return Run(self.call(COPY))


@pytest.fixture(scope="module")
def tiny_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_set(tmp_path_factory.mktemp("set"))


@pytest.fixture(scope="module")
def whole(tiny_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run by two ranks of one machine, in a folder."""
    run = Run(tmp_path_factory.mktemp("whole") / "run")
    words = ["train", str(tiny_disk), "--run", str(run.path), *FLAGS.split(), "--ranks", "2"]
    subprocess.run([sys.executable, "-m", "stoker", *words], check=True, timeout=300)
    return run


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[Cluster, Gateway]]:
    cluster = Cluster(2)
    try:
        switch = ("-n", cluster.switch)
        ip(*switch, "link", "set", "lo", "up")
        ip(*switch, "addr", "add", f"{ADDRESS}/24", "dev", "br0")
        with ceph(ADDRESS, ("ip", "netns", "exec", cluster.switch)) as server:
            yield cluster, server
    finally:
        cluster.remove()


@pytest.fixture
def nodes(site: tuple[Cluster, Gateway], tiny_disk: Path, tmp_path: Path) -> Nodes:
    """Two machines, with the packed set in the store."""
    cluster, server = site
    bucket = server.make_bucket(f"nodes-{uuid.uuid4().hex[:8]}")
    made = Nodes(cluster.machines, server, tmp_path, bucket, port=free_port())
    upload = made.start(0, "upload", str(tiny_disk), f"s3://{bucket}/set")
    assert upload.wait(120) == 0, made.everything()
    shutil.rmtree(made.cache(0), ignore_errors=True)
    return made


@pytest.mark.parametrize("victim", [0, 1], ids=["the machine that leads", "the other one"])
def test_a_machine_is_killed_and_comes_back_empty(nodes: Nodes, whole: Run, victim: int) -> None:
    nodes.host = survivor = 1 - victim
    first, second = nodes.train(survivor), nodes.train(victim)
    nodes.await_commit()
    nodes.machines[victim].kill()
    assert second.wait() == -signal.SIGKILL
    (nodes.root / "go on").touch()
    shutil.rmtree(nodes.cache(victim))

    second = nodes.train(victim)
    codes = [process.wait(300) for process in (first, second)]
    assert codes == [0, 0], nodes.everything()
    copy = nodes.copy()
    assert len(copy.attempts()) >= 2
    (resumed, *_) = [start["step"] for start in copy.starts()[1:]]
    assert resumed > 0, nodes.everything()
    steps = copy.steps()
    assert [event["step"] for event in steps] == list(range(STEPS))
    assert all(event["images"] == event["batch"] for event in steps)
    assert_bit_equal(copy, whole)
    assert "Traceback" not in nodes.everything()
