"""stoker verify: a line for each problem, a last line that says it all, an exit code."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from run_records import record
from samples import image_folder
from stoker.cli import main
from stoker.data.packing.pack import pack
from stoker.errors import FAILED, FINISHED, INTERRUPTED
from stoker.run.directory import Run
from stoker.survive.checkpoint import Snapshot
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.manifest import MARKER, check_hashes
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


class TestRunThatTrains:
    """The checkpoints of a run are written and removed while they are looked at."""

    @pytest.fixture(autouse=True)
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
        """A run with the checkpoints of the steps 1, 2 and 3, which another process trains."""
        monkeypatch.chdir(tmp_path)
        run = Run("run")
        run.create(record(), "")
        checkpoints = Checkpoints(run.path, keep=9)
        for step in (1, 2, 3):
            facts = {"step": step, "position": step, "evaluated": 0, "best": 0.5}
            checkpoints.save(Snapshot({"weight": torch.ones(3)}, {}, {}, facts))
        checkpoints.wait()
        run.lock()
        yield run
        run.unlock()

    def meanwhile(
        self, monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[Path], object]
    ) -> None:
        """Once, before the checkpoint of this step is read, the run does something with it."""

        def read(folder: Path) -> Any:
            if folder.name == f"{step:09d}" and folder not in seen:
                seen.append(folder)
                act(folder)
            return check_hashes(folder)

        seen: list[Path] = []
        monkeypatch.setattr("stoker.cli.verify.check_hashes", read)

    @pytest.mark.parametrize(
        "act", [shutil.rmtree, lambda folder: (folder / MARKER).unlink()], ids=["gone", "going"]
    )
    def test_a_checkpoint_that_is_removed_is_not_damaged(
        self,
        act: Callable[[Path], object],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.meanwhile(monkeypatch, 2, act)
        assert main(["verify", "run"]) == FINISHED
        (line,) = capsys.readouterr().out.splitlines()
        assert line == (
            "OK: 2 checkpoints, all hashes match; 1 more that the run wrote or removed during the "
            "check"
        )

    def test_one_that_is_complete_a_moment_later_is_checked(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        marker = run.path / "checkpoints" / "000000003" / MARKER
        text = marker.read_text()
        marker.unlink()

        def written_after(folder: Path) -> Any:
            try:
                return check_hashes(folder)
            finally:
                if folder == marker.parent:
                    marker.write_text(text)

        monkeypatch.setattr("stoker.cli.verify.check_hashes", written_after)
        assert main(["verify", "run"]) == FINISHED
        assert capsys.readouterr().out == "OK: 3 checkpoints, all hashes match\n"

    def test_where_all_are_replaced_the_new_ones_are_checked(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        newer = Checkpoints(run.path, keep=1)

        def replace(folder: Path) -> None:
            facts = {"step": 4, "position": 4, "evaluated": 0, "best": 0.5}
            newer.save(Snapshot({"weight": torch.ones(3)}, {}, {}, facts))
            newer.wait()

        self.meanwhile(monkeypatch, 3, replace)
        assert main(["verify", "run"]) == FINISHED
        assert capsys.readouterr().out == "OK: 1 checkpoint, all hashes match\n"

    def test_a_damaged_one_is_named(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        weights = run.path / "checkpoints" / "000000001" / "weights.safetensors"
        data = weights.read_bytes()
        weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        self.meanwhile(monkeypatch, 2, shutil.rmtree)
        assert main(["verify", "run"]) == FAILED
        first, last = capsys.readouterr().out.splitlines()
        assert first == f"{weights} is damaged: its hash is not the one in the manifest"
        assert last.startswith(
            "DAMAGED: 1 of 2 checkpoints; 1 more that the run wrote or removed during the check; "
        )

    def test_half_a_checkpoint_of_a_run_that_ended_is_damaged(
        self, run: Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run.unlock()
        (run.path / "checkpoints" / "000000003" / MARKER).unlink()
        assert main(["verify", "run"]) == FAILED
        assert "DAMAGED: 1 of 3 checkpoints; 'stoker" in capsys.readouterr().out
