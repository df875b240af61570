"""What the launcher of doctor's ranks makes of how they ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from networks import network
from stoker.doctor.ranks import FOUND, LOG, collected, without_resuming
from stoker.errors import (
    BAD_REQUEST,
    FAILED,
    FINISHED,
    STEPPED_ASIDE,
    BadRequest,
    Interrupted,
    StokerError,
)


def test_what_ranks_found_is_handed_on(tmp_path: Path) -> None:
    (tmp_path / FOUND).write_text(json.dumps(network().as_data()))
    assert collected(tmp_path, FINISHED, stopped=False) == network()
    assert collected(tmp_path, FINISHED, stopped=True) == network()


def test_a_stop_is_no_failure(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="starts again"):
        collected(tmp_path, None, stopped=True)


@pytest.mark.parametrize(("code", "kind"), [(BAD_REQUEST, BadRequest), (FAILED, StokerError)])
def test_ranks_speak_for_themselves(tmp_path: Path, code: int, kind: type[StokerError]) -> None:
    (tmp_path / LOG).write_text("warning of a library\nstoker: lower it\nstoker: lower it\n")
    with pytest.raises(kind, match=r"^lower it$") as raised:
        collected(tmp_path, code, stopped=False)
    assert raised.value.exit_code == code


def test_ranks_that_break_down_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / LOG).write_text("Traceback\nZeroDivisionError: division by zero\n")
    with pytest.raises(StokerError, match=r"a rank failed .* \(exit code 1\)"):
        collected(tmp_path, FAILED, stopped=False)
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_hosts_that_change_end_it(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("")
    with pytest.raises(StokerError, match="a host came or went while the network was measured"):
        collected(tmp_path, STEPPED_ASIDE, stopped=False)


def test_a_measurement_has_no_checkpoint() -> None:
    gone = "the rendezvous at a:1 is gone"
    resumed = f"{gone}: start the same command again on every node, it goes on from the newest"
    again = f"{gone}: start the same command on every host again"
    assert without_resuming(Interrupted(resumed)) == again
    assert without_resuming(Interrupted(gone)) == gone


def test_a_stage_that_never_ends_is_ended_with_its_name() -> None:
    program = """
import time
from stoker.doctor.ranks import Stage
stage = Stage()
stage.begin("node-a - node-b", 0.2)
time.sleep(60)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == FAILED
    assert "while measuring node-a - node-b: look at the network" in ended.stderr


def test_the_launcher_is_parsed_without_torch() -> None:
    program = "import sys, stoker.doctor.ranks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
