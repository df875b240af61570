"""A writer that is killed, or whose disk is full, leaves the old file complete."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.commit import write_bytes

OLD, NEW = b"old " * 200_000, b"new " * 300_000

WRITE_AND_DIE = """
import os, resource, signal, sys
from pathlib import Path
from stoker.commit import write_bytes

event, target = sys.argv[1], Path(sys.argv[2])
if event == "disk full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
else:
    def die(name, arguments):
        if name == event and str(target.parent) in str(arguments[0]):
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(die)
write_bytes(target, b"new " * 300_000)
"""


@pytest.mark.parametrize("event", ["open", "os.rename", "disk full"])
def test_a_writer_that_dies_leaves_the_old_file(tmp_path: Path, event: str) -> None:
    file = tmp_path / "file"
    write_bytes(file, OLD)
    writer = subprocess.run(
        [sys.executable, "-c", WRITE_AND_DIE, event, str(file)], capture_output=True, timeout=300
    )
    assert writer.returncode == (1 if event == "disk full" else -signal.SIGKILL)
    assert file.read_bytes() == OLD
    write_bytes(file, NEW)
    assert file.read_bytes() == NEW
