"""stoker verify: a line for each problem, a last line that says it all, an exit code."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from samples import image_folder
from stoker.cli import main
from stoker.data.packing.pack import pack
from stoker.errors import FAILED, FINISHED, INTERRUPTED
from waiting import until

OK = r"OK: 26 images in 4 shards, all hashes match \(\d+\.\d s, [\d.]+ [kMG]?B/s\)"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=2, images=10, val=3)
    return pack(folder, root / "packed", workers=1, shard_images=8)


@pytest.fixture
def packed(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "packed")


@pytest.mark.parametrize("flags", [[], ["--threads", "1"], ["--threads", "3"]])
def test_a_whole_set_is_one_line(
    packed: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(packed), *flags]) == FINISHED
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(OK, line)


def test_a_damaged_set_is_a_line_a_problem_and_the_next_command(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (packed / "val" / "00000.tar").unlink()
    (packed / "train" / "00007.tar").touch()
    shard = packed / "train" / "00000.tar"
    data = bytearray(shard.read_bytes())
    data[600] ^= 1
    shard.write_bytes(data)
    assert main(["verify", str(packed)]) == FAILED
    one, two, three, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"train/00000\.tar: image 000000000 at byte 512 is damaged \(from .*\.jpg\)", one
    )
    assert two == "val/00000.tar: missing"
    assert three == "train/00007.tar: not in dataset.json"
    assert last.startswith("DAMAGED: 3 problems in 3 files (")
    assert last.endswith(f"remove {packed} and pack it again with 'stoker pack'")


def test_a_damaged_description_is_named(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = packed / "dataset.json"
    path.write_text(path.read_text().replace("class0", "class9"))
    assert main(["verify", str(packed)]) == FAILED
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("dataset.json: damaged")
    assert last.startswith("DAMAGED: 1 problem in 1 file (")


def test_what_is_odd_is_a_note_and_no_failure(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (packed / "notes.txt").touch()
    assert main(["verify", str(packed)]) == FINISHED
    note, last = capsys.readouterr().out.splitlines()
    assert note == "note: not part of the set: notes.txt"
    assert re.fullmatch(OK, last)


def test_a_pipe_gets_no_control_characters(packed: Path) -> None:
    command = [sys.executable, "-m", "stoker", "verify", str(packed)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (FINISHED, "")
    assert re.fullmatch(OK + "\n", done.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_is_answered_in_one_line(packed: Path, number: signal.Signals) -> None:
    shard = packed / "train" / "00000.tar"
    os.truncate(shard, 1 << 40)  # a hole: nothing on disk, and much to read
    command = [sys.executable, "-m", "stoker", "verify", str(packed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: process.poll() is not None or f"{shard}" in open_files(process.pid))
    process.send_signal(number)
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, output) == (INTERRUPTED, "")
    (line,) = errors.splitlines()
    assert line.startswith(f"stoker: verifying stopped ({number.name}); ")


def open_files(process: int) -> set[str]:
    files = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            files.add(str(entry.readlink()))
    return files
