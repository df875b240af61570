"""A real Spark on this machine: a master and some workers, each with one core.

Everything listens on loopback on free ports, writes below one folder and is ended by process id.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from ports import free_port
from waiting import until

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.pyspark.python": sys.executable,
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
}
"""The settings of a session that stays on this machine."""

NO_REST = "-Dspark.master.rest.enabled=false"
"""Jobs are submitted by sessions alone: the master need not listen for others."""


def missing() -> str | None:
    """Why Spark cannot be started here; None if it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "no pyspark: pip install pyspark"
    return None if shutil.which("java") else "no java: apt-get install openjdk-17-jre-headless"


def flags(**more: str) -> list[str]:
    """The settings as flags of `stoker pack`."""
    pairs = {**SETTINGS, **{name.replace("_", "."): value for name, value in more.items()}}
    return [word for pair in pairs.items() for word in ("--spark-conf", "=".join(pair))]


def children(pid: int) -> list[int]:
    """The processes below a process, the nearest first."""
    below = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                below += [child, *children(child)]
    return below


class StandaloneSpark:
    """A master and workers 0, 1, ..."""

    def __init__(self, root: Path, workers: int = 2) -> None:
        self.root, self.workers = root, workers
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._port = str(port)
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Returns when every worker is registered."""
        self._start("master", "master.Master", "-p", self._port)
        until(lambda: "I have been elected" in self.log("master"), 120, 0.1)
        for number in range(self.workers):
            self.start_worker(number)

    def _start(self, name: str, part: str, *words: str) -> None:
        spec = importlib.util.find_spec("pyspark")
        assert spec and spec.origin
        home = Path(spec.origin).parent
        variables = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_HOSTNAME": "localhost",
            "SPARK_LOCAL_DIRS": str(self.root / "local"),
            "SPARK_DAEMON_MEMORY": "200m",
            "SPARK_DAEMON_JAVA_OPTS": f"-Djava.net.preferIPv4Stack=true {NO_REST}",
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{part}"]
        with (self.root / f"{name}.txt").open("ab") as printed:
            self._daemons[name] = subprocess.Popen(
                [*command, "-h", "127.0.0.1", "--webui-port", "0", *words],
                env=variables,
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, name: str) -> str:
        return (self.root / f"{name}.txt").read_text()

    def start_worker(self, number: int) -> None:
        """Returns when the worker is registered."""
        before = self.log("master").count("Registering worker")
        folder = self.root / f"w{number}"
        words = ("-c", "1", "-m", "1g", "-d", str(folder), self.master)
        self._start(f"worker{number}", "worker.Worker", *words)
        until(lambda: self.log("master").count("Registering worker") > before, 120, 0.1)

    def kill_worker(self, number: int) -> None:
        """Everything on a worker dies at once: itself, Spark's processes and Python's."""
        self._end(f"worker{number}")

    def _end(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        for pid in [daemon.pid, *children(daemon.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        daemon.wait()

    def stop(self) -> None:
        """End everything that was started, and whatever it started."""
        for name in list(reversed(self._daemons)):
            self._end(name)
