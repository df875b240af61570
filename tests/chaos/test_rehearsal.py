"""A rehearsal whose reading process is killed ends with an error, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest
import torch

from stoker.errors import StokerError
from stoker.survive.checkpoint import Snapshot
from stoker.survive.rehearsal import Reader, rehearse


def test_a_killed_reader_is_an_error_with_a_reason(tmp_path: Path) -> None:
    facts = {"step": 3, "position": 192, "best": 0.5}
    snapshot = Snapshot({"kernel": torch.zeros(1000)}, {}, {"optimizer": {}}, facts)
    with closing(Reader()) as reader:
        os.kill(reader._process.pid, signal.SIGKILL)
        with pytest.raises(StokerError, match="cannot read it: it ended without a message"):
            rehearse(tmp_path / "checkpoints", snapshot, reader, copies=3)
    assert list((tmp_path / "checkpoints").iterdir()) == []
