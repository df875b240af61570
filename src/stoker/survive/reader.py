"""The process that reads the first checkpoint of a run back.

Invariant: this module needs no torch, so that the process can start while its parent imports torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from stoker.errors import StokerError
from stoker.host.signals import begin_helper
from stoker.survive.manifest import names_in


class Reader:
    """A process that reads a checkpoint back. Start it early: it imports torch for seconds."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stoker.survive.rehearsal"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=partial(begin_helper, os.getpid()),
        )

    def read(self, folder: Path) -> dict[str, int]:
        """The `contents` of a checkpoint. Raises StokerError where the process cannot read it."""
        output, errors = self._process.communicate(f"{folder.absolute()}\n")
        if self._process.returncode:
            reason = (errors.strip().splitlines() or ["it ended without a message"])[-1]
            raise StokerError(
                f"a checkpoint in {folder.parent} was written, but another process cannot read it: "
                f"{reason}"
            )
        return dict(json.loads(output))

    def close(self) -> None:
        """End the process, whether or not it has read anything."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def early_reader(run_path: Path, rehearse: bool) -> Reader | None:
    """The process that reads the first checkpoint of a run back; None if that is not needed."""
    first = os.environ.get("RANK", "0") == "0"
    return Reader() if rehearse and first and not names_in(run_path / "checkpoints") else None
