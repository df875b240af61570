"""A stand-in for a provider of machines, for SkyPilot's command and for a rented machine's home.

A machine is a file. `stop` leaves its disk billed; after `end` the state has to be read several
times until the machine is gone.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.fleet.sky.task import HOME, SkyTask, run_lines

PROVIDER = """
import json, sys
from pathlib import Path
file, verb = Path(sys.argv[1]), sys.argv[2]
machine = json.loads(file.read_text())
if verb == "end" and machine["refusals"]:
    machine["refusals"] -= 1
    file.write_text(json.dumps(machine))
    sys.exit("the provider is busy")
if verb == "end" and machine["state"] != "terminated":
    machine["state"] = "shutting-down"
if verb == "stop":
    machine["state"] = "stopped"
if verb == "state":
    if machine["state"] == "shutting-down":
        machine["polls"] -= 1
        if machine["polls"] < 0:
            machine.update(state="terminated", disk=False)
    print(machine["state"])
file.write_text(json.dumps(machine))
"""

SKY = """
import json, os, sys
from pathlib import Path
here, words = Path(os.environ["STAND_IN"]), sys.argv[1:]
with (here / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps(words) + "\\n")
if "launch" in words:
    sys.exit(int(os.environ.get("STAND_IN_CODE", "0")))
if words[0] == "status":
    print("a notice that is no JSON")
    names = {"running": "UP", "shutting-down": "UP", "stopped": "STOPPED"}
    machine = json.loads((here / "machine.json").read_text())
    state = names.get(machine["state"])
    rows = [{"name": machine["name"], "status": state}] if state else []
    rows += machine.get("others", [])
    print(json.dumps(rows, indent=2))
if words[:2] == ["jobs", "queue"]:
    print((here / "queue.json").read_text())
"""

TRAINER = """
import os, signal, sys, time
from pathlib import Path
from stoker.run.events import Events
from stoker.run.directory import Run
how, run = sys.argv[1], Run(sys.argv[2])
if how == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
run.path.mkdir(parents=True, exist_ok=True)
events = Events(run.events_path(run.new_attempt(), 0))
events.write("attempt", position=0, step=0)
events.write("step", position=16, step=0)
events.flush()
Path(sys.argv[3]).write_text(str(os.getpid()))
if how == "crash":
    os._exit(9)
time.sleep(600)
"""


@dataclass(frozen=True)
class RentedMachine:
    """A machine of the stand-in provider, with the home of the user who trains there."""

    root: Path

    @classmethod
    def rent(cls, root: Path, name: str = "mine", *, polls: int = 3, refusals: int = 0) -> Any:
        machine = cls(root)
        machine.home.mkdir(parents=True)
        machine.write(name=name, state="running", disk=True, polls=polls, refusals=refusals)
        (root / "provider.py").write_text(PROVIDER)
        (root / "queue.json").write_text("[]")
        machine.install(f'exec {sys.executable} -P -m stoker "$@"')
        sky = root / "bin" / "sky"
        sky.parent.mkdir()
        sky.write_text(f"#!{sys.executable}\n{SKY}")
        sky.chmod(0o755)
        return machine

    def install(self, script: str) -> None:
        """Put a command `stoker` where the task's setup does."""
        program = self.job / "env" / "bin" / "stoker"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/bash\n{script}\n")
        program.chmod(0o755)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def job(self) -> Path:
        return self.home / Path(HOME).name

    @property
    def record(self) -> dict[str, Any]:
        return dict(json.loads((self.root / "machine.json").read_text()))

    def write(self, **facts: Any) -> None:
        file = self.root / "machine.json"
        old = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**old, **facts}))

    def command(self, verb: str) -> str:
        words = [sys.executable, str(self.root / "provider.py")]
        return shlex.join([*words, str(self.root / "machine.json"), verb])

    def call(self, verb: str) -> str:
        done = subprocess.run(shlex.split(self.command(verb)), capture_output=True, text=True)
        return done.stdout.strip()

    @property
    def is_billed(self) -> bool:
        return self.record["state"] != "terminated" or self.record["disk"]

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {
            **os.environ,
            "HOME": str(self.home),
            "PATH": path,
            "STAND_IN": str(self.root),
            "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
        }

    def run(self, task: SkyTask, lease: Sequence[str]) -> subprocess.Popen[str]:
        """Run the task's own lines in a shell, as SkyPilot does, with more words for the lease."""
        script = "\n".join(run_lines(task))
        words = shlex.join([*lease, "--state", self.command("state")])
        script = script.replace(" --process $$", f" --process $$ {words}")
        return subprocess.Popen(
            ["bash", "-c", script],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def lease_log(self) -> str:
        file = self.job / "lease.log"
        return file.read_text() if file.exists() else ""

    def wait_for_log(self, text: str, seconds: float = 60.0) -> str:
        limit = time.monotonic() + seconds
        while text not in self.lease_log():
            assert time.monotonic() < limit, self.lease_log()
            time.sleep(0.05)
        return self.lease_log()
