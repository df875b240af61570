"""`stoker doctor` between two machines: a slow port is named, a fast one is not, and a host that
goes away ends the measurement with a message."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.namespaces import Cluster, Machine, ip, missing
from measured import held, measured

HERE = Path(__file__).parent
ENDPOINT = "10.77.0.1:29400"
MEET = ["--nodes", "2", "--rendezvous", ENDPOINT]
SLOW_COMPUTE_S, QUICK_COMPUTE_S = "5", "0.36"

no_machines = missing() or (None if shutil.which("tc") else "a slow port needs tc")
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(no_machines is not None, reason=no_machines or ""),
    pytest.mark.timeout(1200),
]


@dataclass
class Site:
    """Two machines with one disk."""

    folder: Path
    machines: list[Machine]

    def start(self, compute_s: str, *more: str) -> list[subprocess.Popen[str]]:
        """Measure the links on both, for a step that computes so long."""
        program = (str(HERE / "doctor_network.py"), compute_s)
        return [
            machine.start([*MEET, *more], self.folder, self.log(machine), program)
            for machine in self.machines
        ]

    def log(self, machine: Machine) -> Path:
        return self.folder / f"{machine.name}.out"

    def printed(self) -> list[str]:
        return [self.log(machine).read_text() for machine in self.machines]

    def finish(self, *processes: subprocess.Popen[str], timeout_s: float = 240) -> list[str]:
        codes = [process.wait(timeout=timeout_s) for process in processes]
        assert codes == [0] * len(processes), self.printed()
        return self.printed()

    def wait(self, happened: Callable[[], bool], timeout_s: float = 240) -> None:
        give_up = time.monotonic() + timeout_s
        while not happened():
            held(time.monotonic() < give_up, self.printed())
            time.sleep(0.1)

    def sent(self) -> int:
        """Bytes that the first machine has sent."""
        shown = ip("-n", self.machines[0].space, "-s", "-j", "link", "show", "eth0")
        return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent), prepend=":")
    cluster = Cluster(2)
    try:
        yield Site(tmp_path, cluster.machines)
    finally:
        cluster.remove()


Record = Callable[[str, object], None]


@measured()
def test_a_slow_port_is_named_within_a_minute(site: Site, record_property: Record) -> None:
    for machine in site.machines:
        machine.rate("100mbit")
    began = time.monotonic()
    printed = site.finish(*site.start(QUICK_COMPUTE_S))
    took_s = time.monotonic() - began
    record_property("took_s", took_s)
    held(took_s < 60, took_s)
    first = printed[0].splitlines()
    assert printed[1].splitlines() == first, "every host prints the result"
    (pair,) = [line for line in first if "node-a 10.77.0.1 - node-b 10.77.0.2" in line]
    held(pair.endswith("looks like a 100 Mbit/s port"), pair)
    assert any("transport: sockets, interface eth0" in line for line in first)
    (warning,) = [line for line in first if "warning" in line]
    assert "a 100 Mbit/s port at node-a 10.77.0.1 and node-b 10.77.0.2" in warning
    assert "Mbit/s measured" in warning
    assert first[-1].startswith("  next: ") and "2.5 Gbit/s" in first[-1]


@pytest.mark.rotates(4)
@measured()
def test_the_verb_itself_names_it_too(site: Site, record_property: Record) -> None:
    for machine in site.machines:
        machine.rate("100mbit")
    began = time.monotonic()
    both = [
        machine.start(["doctor", *MEET], site.folder, site.log(machine))
        for machine in site.machines
    ]
    site.wait(lambda: all("looks like a 100 Mbit/s port" in text for text in site.printed()), 60)
    record_property("named_s", time.monotonic() - began)
    for process in both:
        process.wait(timeout=240)


@pytest.mark.rotates(4)
@measured()
@pytest.mark.parametrize("rate", ["1gbit", None])
def test_a_fast_port_is_not_warned_of(
    site: Site, rate: str | None, record_property: Record
) -> None:
    for machine in site.machines:
        if rate:
            machine.rate(rate)
    began = time.monotonic()
    printed = site.finish(*site.start(SLOW_COMPUTE_S))
    record_property("took_s", time.monotonic() - began)
    held("warning" not in printed[0], printed[0])
    held("can hide all of it" in printed[0], printed[0])
    held("a 100 Mbit/s port" not in printed[0], printed[0])


def test_every_socket_listens_on_the_machines_own_address(site: Site) -> None:
    site.machines[0].rate("10mbit")
    both = site.start(SLOW_COMPUTE_S, "--ranks", "2")
    site.wait(lambda: site.sent() > 1_000_000)
    for machine in site.machines:
        listeners = machine.listeners()
        assert listeners
        assert {address.rpartition(":")[0] for address in listeners} == {machine.address}
    both[0].terminate()
    assert [process.wait(timeout=240) for process in both] == [75, 1], site.printed()
    assert not any(machine.processes() for machine in site.machines)


@pytest.mark.rotates(4)
@pytest.mark.parametrize("victim", [0, 1], ids=["the host of the rendezvous", "another"])
def test_a_host_that_dies_ends_the_other_with_a_message(
    site: Site, victim: int, record_property: Record
) -> None:
    for machine in site.machines:
        machine.rate("50mbit")
    both = site.start(SLOW_COMPUTE_S)
    site.wait(lambda: site.sent() > 3_000_000)
    died = time.monotonic()
    site.machines[victim].kill()
    other = both[1 - victim]
    assert other.wait(timeout=240) == 1, site.printed()
    record_property("ended_s", time.monotonic() - died)
    assert not site.machines[1 - victim].processes()
    printed = site.printed()[1 - victim]
    assert "lost a rank while measuring" in printed or "no longer answers" in printed
    assert "start the same command on every node again" in printed
    assert "checkpoint" not in printed
    assert "Traceback" not in printed


@pytest.mark.rotates(4)
def test_a_link_that_drops_all_packets_ends_with_a_message(
    site: Site, record_property: Record
) -> None:
    for machine in site.machines:
        machine.rate("50mbit")
    both = site.start(SLOW_COMPUTE_S)
    site.wait(lambda: site.sent() > 3_000_000)
    cut = time.monotonic()
    site.machines[1].link("down")
    codes = [process.wait(timeout=240) for process in both]
    record_property("ended_s", time.monotonic() - cut)
    assert codes == [1, 1], site.printed()
    assert not any(machine.processes() for machine in site.machines)
    for printed in site.printed():
        assert "start the same command on every node again" in printed
        assert "Traceback" not in printed


@pytest.mark.rotates(4)
@measured()
def test_capacity_of_a_slow_port_is_known_in_seconds(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As training asks for it, before step 1."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    for machine in site.machines:
        machine.rate("10mbit")
    script = (str(HERE / "capacity_rank.py"),)
    both = [
        machine.start([str(rank), "2", f"tcp://{ENDPOINT}"], site.folder, site.log(machine), script)
        for rank, machine in enumerate(site.machines)
    ]
    first, second = (json.loads(text.splitlines()[-1]) for text in site.finish(*both))
    assert first["rate"] == second["rate"]
    held(0.7 * 10e6 / 8 < first["rate"] < 1.3 * 10e6 / 8, first)
    held(first["took_s"] < 6, first)
