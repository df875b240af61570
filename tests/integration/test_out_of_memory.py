"""One of two ranks runs out of memory in mid-exchange: the launcher goes on with a remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.processes import finish, start
from ports import free_port
from stoker.faults import VARIABLE
from stoker.run.directory import Run
from stoker.survive.remedies import Remedies

FLAGS = "--model resnet9_w4 --image-size 24 --batch-size 40 --epochs 2 --ranks 2 --no-rehearse"
pytestmark = [pytest.mark.exact, pytest.mark.timeout(400)]


@pytest.mark.rotates(2)
@pytest.mark.parametrize("elastic", [False, True], ids=["launcher", "node"])
def test_the_same_command_goes_on_by_itself(packed: Path, tmp_path: Path, elastic: bool) -> None:
    row = {"fault": "oom", "at": "gradient", "rank": 1, "step": 5, "once": str(tmp_path / "once")}
    words = ["train", str(packed), "--run", "run", *FLAGS.split()]
    if elastic:
        words += ["--nodes", "1", "--rendezvous", f"127.0.0.1:{free_port()}"]
    code, printed = finish(start(words, tmp_path, {VARIABLE: json.dumps([row])}))
    assert code == 0, printed
    run = Run(tmp_path / "run")
    assert run.finished
    assert run.attempts() == [1, 2]
    assert [remedy.kind for remedy in Remedies(run.path).taken] == ["micro_batch"]
    assert "out of memory at step 5: on rank 1" in printed
    ends = [list(run.attempt_events(1, rank))[-1] for rank in (0, 1)]
    assert [end["kind"] for end in ends] == ["end", "end"]
    assert all("out of memory at step 5" in end["reason"] for end in ends)
