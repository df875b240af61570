"""Stand-ins for the commands of SLURM, for what needs no cluster: each writes down its words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SCRIPT = """#!/bin/sh
echo "$(basename "$0") $*" >> "{folder}/calls"
cat "{folder}/$(basename "$0").answer" 2> /dev/null
cat "{folder}/$(basename "$0").error" >&2 2> /dev/null && exit 1
exit 0
"""


class FakeSlurm:
    """`sbatch`, `scontrol`, `squeue` and `scancel` that answer what a test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name in ("sbatch", "scontrol", "squeue"):
            program = folder / "bin" / name
            program.write_text(SCRIPT.format(folder=folder))
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        for name in [name for name in os.environ if name.startswith("SLURM")]:
            monkeypatch.delenv(name)
        self.answer("sbatch", "17\n")
        self.show(state="RUNNING")

    def answer(self, name: str, text: str) -> None:
        (self.folder / f"{name}.answer").write_text(text)

    def fail(self, name: str, text: str) -> None:
        (self.folder / f"{name}.error").write_text(text)

    def show(self, state: str, preempted: str = "None") -> None:
        lines = [
            "JobId=17 JobName=JobState=CANCELLED",
            f"   JobState={state} Reason=None Dependency=(null)",
            f"   PreemptEligibleTime=2026-11-16T17:22:25 PreemptTime={preempted}",
            "   Comment=JobState=CANCELLED PreemptTime=now",
        ]
        self.answer("scontrol", "\n".join(lines) + "\n")

    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []
