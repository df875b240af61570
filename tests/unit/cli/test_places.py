"""RUN as a folder or as a place in a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli.places import folders_below, run_folder
from stoker.errors import BadRequest

VERBS = (
    *("train", "explain", "report", "watch", "runs", "show-config", "evaluate", "predict"),
    *("export", "verify", "track", "plan"),
)


def test_a_folder_stays_itself(tmp_path: Path) -> None:
    assert run_folder(tmp_path) == str(tmp_path)
    assert run_folder("runs/a", checkpoint="best") == "runs/a"
    assert folders_below([tmp_path]) == [tmp_path]


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        ("https://host/run", "runs are read from"),
        ("s3://user:word@bucket/run", "must not hold credentials"),
        ("s3a://bucket/run", "is written s3://"),
    ],
)
def test_a_place_that_holds_no_runs_is_refused(run: str, sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        run_folder(run)


def test_help_imports_no_client_of_a_store() -> None:
    script = (
        "import sys\nfrom stoker.cli import main\n"
        f"for verb in {VERBS!r}:\n"
        "    try: main([verb, '--help'])\n"
        "    except SystemExit: pass\n"
        "sys.exit(bool({'torch', 'obstore'} & {*sys.modules}))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
