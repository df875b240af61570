"""The run directory between and during commands: damaged, moved, full, read-only, not ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tiny_runs
from bits import same
from disks import small_file_system
from stoker.cli import main
from stoker.errors import BAD_REQUEST, FAILED, FINISHED, BadRequest, StokerError
from stoker.recipe.resolve import resolve
from stoker.run.directory import Run
from stoker.run.events import Event
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.storage import require_storage
from stoker.train.attempt import loop
from stoker.train.attempt.session import train
from tiny_runs import one_thread_alone  # noqa: F401
from unit.survive.test_manifest import change as rewrite
from waiting import until

FLAGS = tiny_runs.FLAGS | {
    "epochs": 2,
    "checkpoint_interval": 1e-6,
    "keep_checkpoints": 3,
    "spot_notice": "off",
}
STEPS = 7
NOBODY = 65534
pytestmark = pytest.mark.exact


def words(data: Path, run: Path) -> list[str]:
    flags = []
    for name, value in FLAGS.items():
        flag = f"--{name.replace('_', '-')}"
        flags += ["--no-rehearse"] if value is False else [flag, str(value)]
    return ["train", str(data), "--run", str(run), *flags]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.tiny_set(tmp_path_factory.mktemp("set"))


@pytest.fixture(scope="module")
def finished_run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    assert train(data, resolve(flags=FLAGS), path) == "finished"
    return path


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, with the checkpoints of its last steps."""
    return shutil.copytree(finished_run, tmp_path / "run")


def last(run: Path) -> Path:
    checkpoints = Checkpoints(run)
    return checkpoints.folder / checkpoints.names()[0]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


LOST: dict[str, Callable[[Path], object]] = {
    "the last checkpoint is gone": lambda run: shutil.rmtree(last(run)),
    "its weights are damaged": lambda run: flip(last(run) / "weights.safetensors"),
    "its weights are gone": lambda run: (last(run) / "weights.safetensors").unlink(),
    "its manifest is damaged": lambda run: flip(last(run) / "manifest.json"),
    "its marker is gone": lambda run: (last(run) / "COMMITTED").unlink(),
    "its state is a folder": lambda run: swap_for_folder(last(run) / "state.pt"),
    "the file last is gone": lambda run: (run / "last").unlink(),
    "the file last names nothing": lambda run: (run / "last").write_text("000000099"),
    "the file best names nothing": lambda run: (run / "best").write_text("000000099"),
}


def swap_for_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def weights(run: Path) -> dict[str, torch.Tensor]:
    name = Checkpoints(run).pointer("last")
    assert name is not None and int(name.partition("-")[0]) == STEPS
    return load_file(run / "checkpoints" / name / "weights.safetensors")


class TestFinished:
    def test_whole_it_is_left_as_it_is(
        self, data: Path, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(words(data, run)) == FINISHED
        assert "finished already" in capsys.readouterr().out
        assert Run(run).attempts() == [1]

    @pytest.mark.parametrize("lost", LOST)
    def test_what_is_lost_is_made_again_to_the_same_bits(
        self,
        data: Path,
        run: Path,
        finished_run: Path,
        lost: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        LOST[lost](run)
        assert main(words(data, run)) == FINISHED
        assert "finished already" not in capsys.readouterr().out
        assert same(weights(run), weights(finished_run))
        best = Checkpoints(run).pointer("best")
        assert best is not None and (run / "checkpoints" / best / "COMMITTED").exists()
        assert main(words(data, run)) == FINISHED
        assert "finished already" in capsys.readouterr().out

    @pytest.mark.parametrize("gone", [True, False])
    def test_with_no_checkpoint_left_it_is_refused_and_left_as_it_is(
        self, data: Path, run: Path, gone: bool, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if gone:
            shutil.rmtree(run / "checkpoints")
        else:
            for weights_file in run.glob("checkpoints/*/weights.safetensors"):
                flip(weights_file)
        before = sorted(run.rglob("*"))
        assert main(words(data, run)) == BAD_REQUEST
        message = capsys.readouterr().err
        assert "is finished, but no checkpoint is left to resume from" in message
        assert message.count("\n") == 1
        assert sorted(run.rglob("*")) == before

    @pytest.mark.parametrize(
        "change", [{"position": 10**6}, {"position": 17}, {"evaluated": 10**6}]
    )
    def test_a_position_that_the_run_never_had_is_passed_over(
        self, data: Path, run: Path, finished_run: Path, change: dict[str, int]
    ) -> None:
        rewrite(last(run), **change)
        name = last(run).name
        shutil.rmtree(run / "attempts")  # as if it had been killed
        assert main(words(data, run)) == FINISHED
        (start,) = Run(run).starts()
        assert start["torn"] == [name]
        assert "this run has no step" in start["torn_reasons"][name]
        assert same(weights(run), weights(finished_run))

    def test_a_checkpoint_of_another_model_is_passed_over(
        self, data: Path, run: Path, finished_run: Path, tmp_path: Path
    ) -> None:
        other = words(data, tmp_path / "other")
        other[other.index("resnet9_w2")] = "resnet9_w4"
        assert main(other) == FINISHED
        name = last(run).name
        shutil.rmtree(last(run))
        shutil.copytree(tmp_path / "other" / "checkpoints" / name, run / "checkpoints" / name)
        shutil.rmtree(run / "attempts")
        assert main(words(data, run)) == FINISHED
        (start,) = Run(run).starts()
        assert start["torn"] == [name]
        assert "another model" in start["torn_reasons"][name]
        assert same(weights(run), weights(finished_run))


class TestVerify:
    def test_a_whole_run(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["verify", str(run)]) == FINISHED
        number = len(Checkpoints(run).names())
        assert capsys.readouterr().out == f"OK: {number} checkpoints, all hashes match\n"

    def test_damage_and_wrong_positions_are_named(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        newest, older, *rest = Checkpoints(run).names()
        flip(run / "checkpoints" / newest / "weights.safetensors")
        rewrite(run / "checkpoints" / older, position=17)
        before = sorted(run.rglob("*"))
        assert main(["verify", str(run)]) == FAILED
        one, two, last_line = capsys.readouterr().out.splitlines()
        assert f"{newest}/weights.safetensors is damaged" in one
        assert f"{older}: this run has no step {int(older):,} at sample 17" in two
        assert last_line == (
            f"DAMAGED: 2 of {len(rest) + 2} checkpoints; 'stoker train' goes on from the newest "
            "one that is whole"
        )
        assert sorted(run.rglob("*")) == before

    def test_a_newer_one_is_refused(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rewrite(last(run), format=2)
        assert main(["verify", str(run)]) == BAD_REQUEST
        assert "has format 2" in capsys.readouterr().err


def move(run: Path) -> None:
    run.rename(run.with_name("moved"))


def replace(run: Path) -> None:
    move(run)
    run.mkdir()


def replace_by_copy(run: Path) -> None:
    move(run)
    shutil.copytree(run.with_name("moved"), run)


class TestMoved:
    """The directory is moved, removed or replaced while the run trains."""

    @pytest.mark.parametrize("act", [move, replace, replace_by_copy, shutil.rmtree])
    def test_it_stops_and_the_moved_run_goes_on_to_the_same_bits(
        self,
        data: Path,
        tmp_path: Path,
        finished_run: Path,
        monkeypatch: pytest.MonkeyPatch,
        act: Callable[[Path], object],
    ) -> None:
        run = tmp_path / "run"
        monkeypatch.setattr(loop, "SECONDS_BETWEEN_LOOKS", 0.0)
        after: list[list[Path]] = []

        def listener(event: Event) -> None:
            if event["kind"] == "checkpoint" and not after:
                until(lambda: "stoker-save" not in {t.name for t in threading.enumerate()})
                act(run)
                after.append(sorted(run.rglob("*")))

        with pytest.raises(StokerError, match="no longer the directory of this run") as stop:
            train(data, resolve(flags=FLAGS), run, (listener,))
        assert stop.value.exit_code == 1
        assert sorted(run.rglob("*")) == after[0]
        if act is shutil.rmtree:
            assert not run.exists()
            return
        moved = tmp_path / "moved"
        assert str(moved) in str(stop.value)
        end = Run(moved).end()
        assert end is not None and end["outcome"] == "failed"
        assert main(words(data, moved)) == FINISHED
        assert same(weights(moved), weights(finished_run))

    def test_a_link_to_the_run_may_be_its_name(
        self, data: Path, tmp_path: Path, finished_run: Path
    ) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "run").symlink_to(tmp_path / "disk")
        assert train(data, resolve(flags=FLAGS), tmp_path / "run") == "finished"
        assert same(weights(tmp_path / "disk"), weights(finished_run))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "disk", "400k,nr_inodes=200") as place:
        yield place


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def use_inodes(disk: Path) -> None:
    with suppress(OSError):
        for number in range(1000):
            (disk / f"file{number}").touch()


def mount_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


class TestDisk:
    @pytest.mark.parametrize(
        ("act", "words_of_it"),
        [
            (fill, "MB are free"),
            (use_inodes, "no inodes left"),
            (mount_read_only, "mounted read-only"),
        ],
    )
    @pytest.mark.parametrize("resumes", [True, False])
    def test_a_disk_that_takes_nothing_is_refused_before_step_1(
        self,
        data: Path,
        finished_run: Path,
        disk: Path,
        capsys: pytest.CaptureFixture[str],
        act: Callable[[Path], object],
        words_of_it: str,
        resumes: bool,
    ) -> None:
        run = disk / "run"
        if resumes:
            shutil.copytree(finished_run, run)
            shutil.rmtree(last(run))
            for older in Checkpoints(run).names()[1:]:
                shutil.rmtree(run / "checkpoints" / older)
            (run / "best").unlink()
        act(disk)
        before = sorted(disk.rglob("*"))
        assert main(words(data, run)) == BAD_REQUEST
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert str(disk) in message
        assert words_of_it in message or (act is fill and "disk is full" in message)
        assert sorted(disk.rglob("*")) == before

    @pytest.mark.parametrize("kind", ["folder", "link", "special file"])
    def test_a_lock_that_is_no_file(
        self, data: Path, run: Path, kind: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (run / "lock").unlink()
        if kind == "folder":
            (run / "lock").mkdir()
        elif kind == "link":
            (run / "lock").symlink_to("elsewhere")
        else:
            os.mkfifo(run / "lock")
        shutil.rmtree(last(run))
        assert main(words(data, run)) == BAD_REQUEST
        message = capsys.readouterr().err
        assert f"lock is a {kind}, not a plain file: remove it" in message
        assert message.count("\n") == 1

    @pytest.mark.parametrize("where", ["", "checkpoints", "attempts"])
    def test_a_folder_of_somebody_else(self, run: Path, where: str) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root, to be somebody else for a while")
        # Not below pytest's own folder, which only its user may enter.
        with tempfile.TemporaryDirectory() as root:
            Path(root).chmod(0o755)
            theirs = shutil.copytree(run, Path(root) / "run")
            for path in (theirs, *theirs.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
            os.chown(theirs / where, 0, 0)
            (theirs / where).chmod(0o755)
            os.seteuid(NOBODY)
            try:
                with pytest.raises(BadRequest) as refusal:
                    require_storage(theirs)
            finally:
                os.seteuid(0)
            folder = theirs / where if where else theirs
            user = "it belongs to user 0, this is user 65534"
            assert f"cannot write in {folder}: no permission ({user})" in str(refusal.value)
