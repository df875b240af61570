"""`stoker selftest` as people type it: without a GPU, broken, and stopped."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from integration.processes import finish, start, wait_until
from stoker.doctor.selftest.checks import CHECKS
from stoker.doctor.selftest.rows import FAILED, NOT_RUN, OK
from stoker.errors import FAILED as CODE_FAILED
from stoker.errors import FINISHED, INTERRUPTED
from stoker.faults import VARIABLE

IN_THIS_PROCESS = "machine,copies,syncs,input,save,overflow,nan,loop-large,loop-small-fp16"
NOT_QUICK = {"loop-small-compiled", "no-memory-compile", "repeat"}


def left(folder: Path) -> list[str]:
    """What is in a folder, except for the cache that PyTorch's compiler makes there."""
    return [path.name for path in folder.iterdir() if not path.name.startswith("torchinductor")]


def selftest(
    cwd: Path, *words: str, faults: list[dict[str, Any]] | None = None
) -> tuple[int, str, dict[str, dict[str, Any]]]:
    """The exit code, what was printed, and the rows by their names. Nothing is left behind."""
    temporary = cwd / "tmp"
    temporary.mkdir()
    variables = {"TMPDIR": str(temporary), VARIABLE: json.dumps(faults) if faults else ""}
    process = start(["selftest", "--quick", "--json", "figures.json", *words], cwd, variables)
    code, printed = finish(process)
    assert sorted(path.name for path in cwd.iterdir()) == ["figures.json", "tmp"], printed
    assert not left(temporary), printed
    rows = json.loads((cwd / "figures.json").read_text())["rows"]
    return code, printed, {row["name"]: row for row in rows}


def check_rows(rows: dict[str, dict[str, Any]], printed: str) -> None:
    """Every check has its verdict and its line; what needs a GPU says so."""
    for check in CHECKS:
        if (row := rows.get(check.name)) is None:
            continue
        assert f"| {row['name']} | " in printed
        if check.gpus:
            assert (row["verdict"], row["reason"]) == (NOT_RUN, "no GPU"), row
        elif check.name in NOT_QUICK:
            assert (row["verdict"], "--quick" in row["reason"]) == (NOT_RUN, True), row
        else:
            assert (row["verdict"], bool(row["value"])) == (OK, True), row


@pytest.mark.rotates(4)
@pytest.mark.slow
@pytest.mark.exact
def test_everything_holds_on_a_cpu(tmp_path: Path) -> None:
    code, printed, rows = selftest(tmp_path)
    assert code == FINISHED, printed
    assert list(rows) == [check.name for check in CHECKS]
    check_rows(rows, printed)
    print(sum(row["seconds"] for row in rows.values()), "s")


@pytest.mark.exact
def test_a_broken_product_is_noticed_and_all_else_holds(tmp_path: Path) -> None:
    full = {"fault": "full", "at": "weights.safetensors:piece", "again": True}
    code, printed, rows = selftest(tmp_path, "--only", IN_THIS_PROCESS, faults=[full])
    assert code == CODE_FAILED, printed
    assert {"input", "overflow", "nan", "syncs", "loop-large-mixed"} <= set(rows)
    assert rows.pop("save")["verdict"] == FAILED
    check_rows(rows, printed)
    (line,) = [line for line in printed.splitlines() if line.startswith("| save | ")]
    assert "No space left on device" in line and line.endswith("| FAILED |")
    last = printed.splitlines()[-1]
    assert last.startswith("| `stoker selftest` | no GPU, ") and ", 1 failed, " in last


@pytest.mark.rotates(2)
@pytest.mark.exact
def test_a_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    variables = {"TMPDIR": str(tmp_path)}
    stall = {"fault": "stall", "at": "starting", "mark": str(tmp_path / "mark"), "seconds": 300}
    variables[VARIABLE] = json.dumps([stall])
    process = start(["selftest", "--quick", "--only", "repeat"], tmp_path, variables)
    wait_until((tmp_path / "mark").exists, process)
    os.killpg(process.pid, signal.SIGINT)
    code, printed = finish(process)
    assert code == INTERRUPTED, printed
    assert "the selftest stopped (SIGINT)" in printed and "Traceback" not in printed
    assert left(tmp_path) == ["mark"]
