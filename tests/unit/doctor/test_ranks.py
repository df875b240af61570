"""The launcher of doctor's ranks: what it refuses, and what it makes of their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from golden import check_golden
from networks import network
from stoker.doctor.ranks import LOG, RESULT, RankOptions, key_of_hosts, read_result
from stoker.errors import (
    BAD_REQUEST,
    FAILED,
    FINISHED,
    STEPPED_ASIDE,
    BadRequest,
    Interrupted,
    StokerError,
)
from stoker.fleet.elastic import KEY_FILE


def test_the_result_of_the_ranks_is_read(tmp_path: Path) -> None:
    (tmp_path / RESULT).write_text(json.dumps(network().as_data()))
    assert read_result(tmp_path, FINISHED, stopped=False) == network()
    assert read_result(tmp_path, FINISHED, stopped=True) == network()


def test_a_stop_is_no_failure(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        read_result(tmp_path, None, stopped=True)


@pytest.mark.parametrize(("code", "kind"), [(BAD_REQUEST, BadRequest), (FAILED, StokerError)])
def test_the_messages_of_ranks_are_raised_once(
    tmp_path: Path, code: int, kind: type[StokerError]
) -> None:
    (tmp_path / LOG).write_text("warning of a library\nstoker: lower it\nstoker: lower it\n")
    with pytest.raises(kind, match=r"^lower it$") as raised:
        read_result(tmp_path, code, stopped=False)
    assert raised.value.exit_code == code


def test_the_traceback_of_a_rank_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / LOG).write_text("Traceback\nZeroDivisionError: division by zero\n")
    with pytest.raises(StokerError, match="exit code 1"):
        read_result(tmp_path, FAILED, stopped=False)
    assert "ZeroDivisionError" in capsys.readouterr().err


def message(function: Callable[[], object], kind: type[StokerError] = StokerError) -> str:
    with pytest.raises(kind) as raised:
        function()
    assert type(raised.value) is kind
    return str(raised.value)


def test_messages_golden(tmp_path: Path) -> None:
    """Every message of a launcher about what cannot be measured, and about ranks that failed."""
    (tmp_path / LOG).write_text("")
    (tmp_path / "file").write_text("")

    def ended(code: int | None) -> Callable[[], object]:
        return lambda: read_result(tmp_path, code, stopped=code is None)

    refused = [
        RankOptions(ranks=0),
        RankOptions(),
        RankOptions(nodes="2"),
        RankOptions(nodes="1", rendezvous="127.0.0.1:29400"),
        RankOptions(address="127.0.0.1"),
        RankOptions(nodes="2", rendezvous="here:29400", address="192.0.2.7"),
    ]
    messages = [message(options.check, BadRequest) for options in refused]
    path = tmp_path / "file" / "runs" / KEY_FILE
    messages.append(message(lambda: key_of_hosts(path), BadRequest).replace(str(tmp_path), "HERE"))
    messages.append(message(ended(None), Interrupted))
    messages += [message(ended(code)) for code in (FAILED, STEPPED_ASIDE)]
    check_golden("doctor_ranks", messages)


def test_a_stage_that_takes_too_long_is_ended_and_named() -> None:
    program = """
import time
from stoker.doctor.ranks import Stage
stage = Stage()
stage.begin("node-a - node-b", 0.2)
time.sleep(60)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == FAILED
    check_golden("doctor_stage", ended.stderr.splitlines())


def test_the_launcher_is_parsed_without_torch() -> None:
    program = "import sys, stoker.doctor.ranks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
