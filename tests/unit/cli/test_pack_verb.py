"""stoker pack: a summary at the end, nothing done twice, and nothing lost by a stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from golden import check_golden
from samples import image_folder, picture
from stoker.cli import main
from stoker.cli.pack import parser
from stoker.errors import BAD_REQUEST, FINISHED, INTERRUPTED
from waiting import until

MANY = 600
SHARD_IMAGES = 20


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("source") / "photos", classes=2, images=10)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough images that packing them lasts: a few pictures under many names."""
    root = tmp_path_factory.mktemp("source") / "many"
    for label in range(3):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        first = folder / "0000.jpg"
        picture(label, 0, (240, 180)).save(first)
        for number in range(1, MANY // 3):
            os.link(first, folder / f"{number:04d}.jpg")
    return root


def times(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*.tar"))}


class TestSummary:
    def test_the_first_time_it_packs_and_says_what_it_found(
        self, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "out"
        assert main(["pack", str(photos), str(out), "--workers", "1"]) == FINISHED
        first, *rest = capsys.readouterr().out.splitlines()
        assert first == f"packing {photos} into {out}"
        assert rest[0].startswith(f"{out}: 20 images (train 18, val 2) in 2 classes, ")
        assert [line.split()[0] for line in rest[1:]] == ["sizes", "balance", "held"]

    def test_the_second_time_it_says_so_and_touches_nothing(
        self, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["pack", str(photos), str(tmp_path / "out"), "--workers", "1"]
        assert main(words) == FINISHED
        before = times(tmp_path)
        capsys.readouterr()
        assert main(words) == FINISHED
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"packed already: {tmp_path / 'out'}: 20 images")
        assert times(tmp_path) == before

    def test_without_a_target_it_packs_beside_the_caller(
        self, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["pack", str(photos), "--workers", "1"]) == FINISHED
        assert (tmp_path / "photos-packed" / "dataset.json").is_file()

    def test_flags_reach_the_pack(
        self, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = "--codec raw --max-side 24 --val-share 0.5 --shard-images 4 --workers 1"
        assert main(["pack", str(photos), str(tmp_path / "out"), *words.split()]) == FINISHED
        text = capsys.readouterr().out
        assert "(train 10, val 10)" in text
        assert "in 6 shards (raw)" in text
        assert "24x20 largest" in text
        assert "50% of each class as val" in text

    def test_a_pipe_gets_no_control_characters(self, photos: Path, tmp_path: Path) -> None:
        process = packer(photos, tmp_path / "out", workers=1)
        text, errors = process.communicate(timeout=300)
        assert process.returncode == FINISHED
        assert errors == ""
        assert not [letter for letter in text if ord(letter) < 32 and letter != "\n"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--val-share 1", "--val-share"),
        ("--val-share -0.1", "--val-share"),
        ("--val-share nan", "--val-share"),
        ("--val-share ten", "--val-share"),
        ("--shard-images 0", "--shard-images"),
        ("--shard-images many", "--shard-images"),
        ("--codec png", "jpeg, original, raw"),
        ("--quality 0", "quality"),
        ("--quality 101", "quality"),
        ("--max-side -1", "max_side"),
        ("--workers -1", "workers"),
        ("--workrs 2", "--workers"),
        ("--max-ram -1", "max_ram"),
        ("--columns image", "--columns"),
        ("--columns imge=a", "imge=a"),
        ("--spot-notice ibm", "spot_notice"),
        ("--quality", "--quality"),
        ("there and-there", "and-there"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_written(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pack", str(photos), *words.split()]) == BAD_REQUEST
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stoker: ")
    assert named in line
    assert list(tmp_path.iterdir()) == []


def test_help_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    check_golden("cli_pack_help", parser().format_help().splitlines())


def test_other_peoples_files_are_not_written_among(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").touch()
    assert main(["pack", str(photos), str(tmp_path)]) == BAD_REQUEST
    assert "thesis.tex" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_another_pack_is_not_written_over(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pack", str(photos), str(tmp_path / "out"), "--workers", "1"]
    assert main(words) == FINISHED
    assert main([*words, "--max-side", "32"]) == BAD_REQUEST
    assert "holds another packed set" in capsys.readouterr().err


def packer(folder: Path, out: Path, workers: int) -> subprocess.Popen[str]:
    """The command in a process group of its own, as a terminal would start it."""
    words = ["pack", str(folder), str(out), "--workers", str(workers)]
    return subprocess.Popen(
        [sys.executable, "-m", "stoker", *words, "--shard-images", str(SHARD_IMAGES)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def parts_done(out: Path) -> int:
    return len(list((out / ".parts").glob("[!.]*.parquet")))


Packer = subprocess.Popen[str]


def broken_off(
    folder: Path, place: Path, workers: int, stop: Callable[[Packer, Path], None]
) -> tuple[Path, Packer, str, str]:
    """A pack that was told to stop before its end, and what it said. On a busy machine it may be
    done before it is told: then another begins."""
    for attempt in range(10):
        out = place / f"out{attempt}"
        process = packer(folder, out, workers)
        with suppress(ProcessLookupError):
            stop(process, out)
        output, errors = process.communicate(timeout=300)
        if not (out / "dataset.json").exists() and parts_done(out) < MANY // SHARD_IMAGES:
            break
    return out, process, output, errors


STOPS = {
    "ctrl-c": (os.killpg, signal.SIGINT, 2),
    "ctrl-c, no workers": (os.killpg, signal.SIGINT, 1),
    "sigterm": (os.kill, signal.SIGTERM, 2),
    "sigterm to the whole group": (os.killpg, signal.SIGTERM, 2),
    "a closed terminal": (os.killpg, signal.SIGHUP, 2),
}
"""How it is sent, what, and with how many workers."""


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_keeps_what_is_done_and_the_same_command_goes_on(
    many: Path, tmp_path: Path, stop: str
) -> None:
    send, number, workers = STOPS[stop]

    def stop_in_the_middle(process: Packer, out: Path) -> None:
        until(lambda: parts_done(out) >= 8 or process.poll() is not None)
        send(process.pid, number)

    out, process, output, errors = broken_off(many, tmp_path, workers, stop_in_the_middle)
    assert process.returncode == INTERRUPTED, errors
    assert output == f"packing {many} into {out}\n"
    (line,) = errors.splitlines()
    assert line.startswith(f"stoker: packing stopped ({signal.Signals(number).name}); ")
    assert str(out) in line
    assert not (out / "dataset.json").exists()
    kept = [part.stem for part in (out / ".parts").glob("[!.]*.parquet")]
    tars = {str(out / name.replace("-", "/", 1)) + ".tar" for name in kept}
    before = {path: when for path, when in times(out).items() if path in tars}
    assert 8 <= len(before) < MANY // SHARD_IMAGES

    process = packer(many, out, workers)
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (FINISHED, "")
    assert f"{out}: {MANY} images (train 540, val 60) in 3 classes" in output
    assert before.items() <= times(out).items()
    assert not (out / ".parts").exists()


@pytest.mark.parametrize("delay_s", [0.1, 0.2, 0.3])
def test_ctrl_c_while_the_workers_start_is_answered_in_one_line(
    many: Path, tmp_path: Path, delay_s: float
) -> None:
    def stop_at_the_start(process: Packer, out: Path) -> None:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("packing ")
        time.sleep(delay_s)
        os.killpg(process.pid, signal.SIGINT)

    _, process, _, errors = broken_off(many, tmp_path, 2, stop_at_the_start)
    assert process.returncode == INTERRUPTED
    assert errors.splitlines()[:-1] == []
    assert errors.startswith("stoker: packing stopped")
