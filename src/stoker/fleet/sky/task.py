"""The task file of a job on a rented machine: what SkyPilot reads, and a person can read and edit.

Invariants: every word of the user's is quoted, for the shell and for YAML. No value of an
environment variable is in the file: secrets are named there, and SkyPilot reads them from the
environment of the command that launches. The lease is in force before training begins. What the
job writes is in a bucket, so that the machine can be lost at any time.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.errors import INTERRUPTED
from stoker.fleet.sky.wheel import NAME as WHEEL
from stoker.fleet.sky.yaml import Plain, require_one_line, yaml_text

FILE = "sky.yaml"
HOME = "~/stoker-job"
"""The folder on the machine; every path of the command is below it."""
IDLE_MINUTES = 10
"""SkyPilot ends a machine that has been idle for so long; a managed job's machine too."""
LAST_RESORT_H = 1.0
"""Hours after the lease at which the machine shuts itself down, even if nothing else works."""
END_COMMANDS = ("skypilot", "sudo -n shutdown -h now")
"""How the lease ends a machine: by SkyPilot's own process there, then by the system."""


@dataclass(frozen=True)
class SkyTask:
    """What to train, where, and for how long at most."""

    name: str
    words: Sequence[str]
    """The words of a stoker command, with paths below HOME."""
    run: str
    """The run directory, below HOME."""
    bucket: str
    """URL of the folder in a bucket that is the run directory."""
    mounts: Mapping[str, str]
    """Path below HOME: a local path, or the URL of a folder in a bucket."""
    resources: Mapping[str, Plain]
    spot: bool = True
    hours: float = 24.0
    stall_minutes: float | None = None
    extras: Sequence[str] = ()
    """Optional parts of Stoker that the command needs, such as timm."""
    secrets: Sequence[str] = ()
    """Names of environment variables."""
    end: Sequence[str] = END_COMMANDS

    @property
    def managed(self) -> bool:
        """Whether SkyPilot watches the job and starts it again on another machine."""
        return self.spot


@dataclass(frozen=True)
class LaunchCommand:
    """The words that launch a task file."""

    task: SkyTask
    file: Path
    yes: bool = False
    program: Sequence[str] = field(default=("sky",))

    @property
    def words(self) -> list[str]:
        task = self.task
        verb = ["jobs", "launch", "-n"] if task.managed else ["launch", "-c"]
        secrets = [word for name in task.secrets for word in ("--secret", name)]
        return [
            *(*self.program, *verb, task.name, "-d", *secrets),
            *(["-y"] * self.yes),
            str(self.file),
        ]


def task_text(task: SkyTask, file: Path, wheel: Path) -> str:
    """The text of the task file. Raises BadRequest for what cannot stand in one."""
    launch = shlex.join(LaunchCommand(task, file).words)
    require_one_line(launch)
    table: dict[str, Plain] = {
        "name": task.name,
        "resources": resources_of(task),
        "file_mounts": mounts_of(task, wheel),
        **({"secrets": dict.fromkeys(task.secrets)} if task.secrets else {}),
        "setup": "\n".join(setup_lines(task)) + "\n",
        "run": "\n".join(run_lines(task)) + "\n",
    }
    return f"# Edit it if you like, and launch it again: {launch}\n{yaml_text(table)}"


def resources_of(task: SkyTask) -> dict[str, Plain]:
    """The machine, and what happens when it is lost or idle."""
    resources: dict[str, Plain] = {**task.resources, "use_spot": task.spot}
    if task.managed:
        return {
            **resources,
            "job_recovery": {
                "max_restarts_on_errors": 0,
                "recover_on_exit_codes": [INTERRUPTED],
            },
        }
    idle: dict[str, Plain] = {"idle_minutes": IDLE_MINUTES, "down": True, "wait_for": "jobs"}
    return {**resources, "autostop": idle}


def mounts_of(task: SkyTask, wheel: Path) -> dict[str, Plain]:
    return {
        f"{HOME}/{WHEEL}": str(wheel),
        **{f"{HOME}/{path}": source for path, source in task.mounts.items()},
        f"{HOME}/{task.run}": {"source": task.bucket, "mode": "MOUNT_CACHED"},
    }


def setup_lines(task: SkyTask) -> list[str]:
    """Install the mounted wheel. A last resort comes first: nothing later can prevent it."""
    minutes = math.ceil((task.hours + LAST_RESORT_H) * 60)
    wheel = WHEEL + (f"[{','.join(task.extras)}]" if task.extras else "")
    return [
        "# A last resort, in case that the lease fails or this setup hangs.",
        f"sudo -n shutdown -h +{minutes} || true",
        "set -e",
        f"cd {HOME}",
        'PATH="$HOME/.local/bin:$PATH"',
        "command -v uv > /dev/null || timeout 600 python3 -m pip install -q uv",
        "[ -e env/bin/python ] || timeout 600 uv venv -q --python 3.11 env",
        f"timeout 3600 uv pip install -q --python env/bin/python {shlex.quote('./' + wheel)}",
    ]


def run_lines(task: SkyTask) -> list[str]:
    """Take out the lease, train, and tell SkyPilot whether to go on elsewhere."""
    run = shlex.quote(task.run)
    stall = f" --stall {task.stall_minutes:g}" if task.stall_minutes is not None else ""
    ends = "".join(f" --end {shlex.quote(command)}" for command in task.end)
    return [
        f"cd {HOME} || exit 1",
        'export PATH="$PWD/env/bin:$PATH"',
        "# Ends this machine when training has ended or hangs, or when the hours are used up. It",
        "# runs beside training, and needs no other machine.",
        f"stoker lease {run} --process $$ --hours {task.hours:g}{stall}{ends} || exit 1",
        "",
        f"stoker {shlex.join(task.words)}",
        "# Says what became of it."
        + f" SkyPilot continues after {INTERRUPTED}, on another machine." * task.managed,
        f"exec stoker lease {run} --ended $?",
    ]
