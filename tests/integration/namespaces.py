"""Machines for tests: network namespaces on a bridge of their own, each with its own host name.

Nothing is made in the machine's own network, and the names carry the process id: two test runs do
not meet. All namespaces have the same files: the shared disk of a cluster.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def missing() -> str | None:
    """Why namespaces cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    gone = [tool for tool in ("ip", "ss", "unshare") if shutil.which(tool) is None]
    if gone:
        return f"network namespaces need {', '.join(gone)}"
    probe = f"stk{os.getpid()}probe"
    try:
        ip("netns", "add", probe)
        ip("netns", "del", probe)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    return None


@dataclass
class Machine:
    """One namespace, with one network card, and a file of its own as /etc/hosts where one is
    named."""

    name: str
    space: str
    address: str
    core: int
    hosts: Path | None = None
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self,
        arguments: Sequence[str],
        cwd: Path,
        log: Path,
        program: Sequence[str] = ("-m", "stoker"),
    ) -> subprocess.Popen[str]:
        """A stoker process on this machine; what it prints goes to a file."""
        # `ip netns exec` gives each process mounts of its own.
        names = f"mount --bind {shlex.quote(str(self.hosts))} /etc/hosts && " if self.hosts else ""
        named = ["unshare", "--uts", "sh", "-c", f'{names}hostname "$0" && exec "$@"', self.name]
        stoker = [sys.executable, *program, *arguments]
        with log.open("a") as printed:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.space, *named, *stoker],
                cwd=cwd,
                stdout=printed,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                # Machines do not share cores.
                preexec_fn=lambda: os.sched_setaffinity(0, {self.core}),
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self.started.append(process)
        return process

    def processes(self) -> list[int]:
        return [int(pid) for pid in ip("netns", "pids", self.space).split()]

    def kill(self) -> None:
        """Everything on this machine dies at once."""
        kill_at_once(self)

    def rate(self, rate: str | None) -> None:
        """Let the card send no more than this: 100mbit, 1gbit; None: as much as it can."""
        card = ("dev", "eth0", "root")
        tc = ["ip", "netns", "exec", self.space, "tc", "qdisc"]
        subprocess.run([*tc, "del", *card], check=False, capture_output=True)
        if rate:
            bucket = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
            subprocess.run([*tc, "add", *card, *bucket], check=True, capture_output=True)

    def link(self, state: str) -> None:
        ip("-n", self.space, "link", "set", "eth0", state)

    def listeners(self) -> list[str]:
        """Addresses on which anything listens."""
        shown = subprocess.run(
            ["ip", "netns", "exec", self.space, "ss", "-H", "-l", "-t", "-n"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        return [line.split()[3] for line in shown.splitlines()]


def kill_at_once(*machines: Machine) -> None:
    """Everything on these machines dies at the same moment."""
    for pid in [pid for machine in machines for pid in machine.processes()]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in [process for machine in machines for process in machine.started]:
        process.wait()


class Cluster:
    """Some machines on one bridge."""

    def __init__(self, count: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        tag = f"stk{os.getpid()}"
        self.switch = f"{tag}sw"
        self.machines: list[Machine] = []
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "br0", "up")
        for number in range(1, count + 1):
            letter = chr(ord("a") + number - 1)
            core = cores[number % len(cores)]
            machine = Machine(f"node-{letter}", f"{tag}{letter}", f"10.77.0.{number}", core)
            self.machines.append(machine)
            self._connect(machine, f"port{letter}")

    def _connect(self, machine: Machine, port: str) -> None:
        space = ("-n", machine.space)
        ip("netns", "add", machine.space)
        ip(*space, "link", "set", "lo", "up")
        veth = ("link", "add", "eth0", "type", "veth", "peer", "name", port)
        ip(*space, *veth, "netns", self.switch)
        ip("-n", self.switch, "link", "set", port, "master", "br0", "up")
        ip(*space, "addr", "add", f"{machine.address}/24", "dev", "eth0")
        ip(*space, "link", "set", "eth0", "up")

    def remove(self) -> None:
        for machine in self.machines:
            machine.kill()
            ip("netns", "del", machine.space)
        ip("netns", "del", self.switch)
