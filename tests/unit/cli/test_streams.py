"""Standard streams that are closed or full: an exit code and one line, no traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from golden import check_golden
from stoker.cli.streams import write_figures
from stoker.errors import BAD_REQUEST, FAILED, FINISHED, StokerError

pytestmark = pytest.mark.exact
LOST = "stoker: cannot write to standard output: "
CASES = [
    ("--help >&-", FAILED, LOST + "it is closed"),
    ("--help >/dev/full", FAILED, LOST + "No space left on device"),
    ("--version >/dev/full", FAILED, LOST + "No space left on device"),
    ("train --help >/dev/full", FAILED, LOST + "No space left on device"),
    ("train --help-all >&-", FAILED, LOST + "it is closed"),
    ("show-config >/dev/full", FAILED, LOST + "No space left on device"),
    ("show-config >&- <&-", FAILED, LOST + "it is closed"),
    ("show-config >&- 2>&-", FAILED, ""),
    ("show-config 2>&- <&- >/dev/null", FINISHED, ""),
    ("show-config 2>/dev/full >/dev/null", FINISHED, ""),
    ("trian >&-", BAD_REQUEST, "stoker: no verb called 'trian': did you mean 'train'?"),
    ("trian >&- 2>/dev/full", BAD_REQUEST, ""),
    ("explain nowhere >/dev/full", BAD_REQUEST, "stoker: nowhere is not a run (no run.json)"),
    ("train --help-all | head -1 >/dev/null", FINISHED, ""),
]


@pytest.mark.parametrize(("words", "code", "line"), CASES, ids=[case[0] for case in CASES])
def test_a_stream_that_cannot_be_written(words: str, code: int, line: str) -> None:
    """Unbuffered and buffered: the error comes with the first write, or at the end."""
    for flag in ("", "-u"):
        command = f"set -o pipefail; {shlex.quote(sys.executable)} {flag} -m stoker {words}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert (done.returncode, done.stderr.rstrip("\n")) == (code, line)


def test_figures_for_a_device_do_not_replace_it(tmp_path: Path) -> None:
    """As root, a new file would take the place of the device."""
    with pytest.raises(StokerError) as error:
        write_figures("/dev/full", {"images": 1})
    assert not Path("/dev/full").is_file()
    check_golden("cli_streams", [str(error.value)])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_figures(str(pipe), {"images": 1})
    assert os.read(reader, 100) == b'{\n "images": 1\n}\n'
    os.close(reader)
    write_figures(str(tmp_path / "figures"), {"images": 1})
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["figures", "pipe"]
