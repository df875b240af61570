"""The fault `kill` ends the process at its place, at the nth time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from stoker.faults import VARIABLE


def test_kill_ends_the_process_at_once() -> None:
    script = (
        "from stoker import faults\n"
        "faults.arm()\n"
        "for turn in range(5):\n"
        "    print(turn, flush=True)\n"
        "    faults.reach('here')\n"
    )
    row = {"fault": "kill", "at": "here", "rank": 1, "count": 3}
    environment = {**os.environ, VARIABLE: json.dumps([row]), "RANK": "1"}
    child = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == -signal.SIGKILL
    assert child.stdout.split() == ["0", "1", "2"]
