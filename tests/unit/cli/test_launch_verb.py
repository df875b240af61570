"""`stoker launch slurm` and `stoker requeue` without a cluster: the file, the words, mistakes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from fake_slurm import FakeSlurm
from golden import check_golden
from stoker.cli import main
from stoker.cli.requeue import progress_of

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A working directory with a folder of images, and stand-ins for SLURM's commands."""
    (tmp_path / "here" / "photos").mkdir(parents=True)
    (tmp_path / "here" / "packed").mkdir()
    (tmp_path / "here" / "packed" / "dataset.json").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    return FakeSlurm(tmp_path / "slurm", monkeypatch)


def answer(words: str, capsys: Capture) -> tuple[int, str]:
    code = main(shlex.split(words))
    captured = capsys.readouterr()
    return code, captured.out + captured.err


MISTAKES = [
    "",
    "cloud -- train photos",
    "slurn -- train photos",
    "slurm",
    "slurm --time 10 train photos",
    "slurm --",
    "slurm -- trian photos",
    "slurm -- requeue x --code 0",
    "slurm -- launch slurm -- train photos",
    "slurm -- train photos --epochz 3",
    "slurm -- train nowhere",
    "slurm -- pack -",
    "slurm -- pack nowhere",
    "slurm --nodes two -- train photos",
    "slurm --nodes 2 -- pack photos",
    "slurm --nodes 2 -- train photos --nodes 2 --rendezvous here:1",
    "slurm --array=0-3 -- train photos",
    "slurm --wrap=x -- train photos",
    "slurm --site nowhere -- train photos",
    "slurm --time= -- train photos",
    "slurm -p gpu -- train photos",
    "slurm --job-name 'a\nb' -- train photos",
    "slurm -- train 'packed' --run 'a\nb'",
    "slurm --qos 'a\nb' -- train photos",
]


def test_golden_mistakes(slurm: FakeSlurm, capsys: Capture) -> None:
    lines = []
    for words in MISTAKES:
        code, printed = answer(f"launch {words}", capsys)
        assert code == 2, printed
        assert len(printed.splitlines()) == 1
        lines += [f"stoker launch {words!r}", f"  {printed.strip()}"]
    assert not slurm.calls()
    assert not Path("jobs").exists()
    check_golden("launch_mistakes", lines)


def test_a_dry_run_prints_the_file_and_writes_nothing(slurm: FakeSlurm, capsys: Capture) -> None:
    words = "--time 30 --qos=long --exclusive --mail-user 'a b' -- train packed --epochs 2"
    code, printed = answer(f"launch slurm --dry-run {words}", capsys)
    assert code == 0
    assert not slurm.calls()
    assert not Path("jobs").exists()
    for line in (
        "--time=30",
        "--qos=long",
        "--exclusive",
        '--mail-user="a b"',
        "--signal=USR1@120",
    ):
        assert f"#SBATCH {line}\n" in printed
    assert answer(f"launch slurm {words}", capsys)[0] == 0
    (file,) = Path("jobs").glob("*/slurm.sh")
    assert file.read_text() == printed
    name = file.parent.name
    assert f"train packed --epochs 2 --run runs/{name}\n" in printed
    assert f"--progress runs/{name} --code" in printed


def test_golden_submitted(slurm: FakeSlurm, capsys: Capture) -> None:
    Path("slurm.toml").write_text("setup = ['module load x']\n[sbatch]\npartition = 'gpu'")
    lines = []
    for words in ("train packed", "pack photos", "bench data packed"):
        code, printed = answer(f"launch slurm --time 60 -- {words}", capsys)
        assert code == 0, printed
        lines += printed.splitlines()
    check_golden("launch_submitted", lines)
    files = {f"sbatch --parsable {path}" for path in Path("jobs").glob("*/slurm.sh")}
    assert set(slurm.calls()) == files


def test_a_flag_wins_over_the_site_file(slurm: FakeSlurm, capsys: Capture) -> None:
    Path("slurm.toml").write_text("[sbatch]\npartition = 'gpu'\naccount = 'lab'")
    words = "launch slurm --dry-run --partition cpu -- train packed"
    assert main(words.split()) == 0
    printed = capsys.readouterr()
    assert "site file slurm.toml" in printed.err
    assert printed.out.startswith("#!/bin/bash\n"), "the file alone, to be redirected"
    assert "#SBATCH --partition=cpu\n" in printed.out
    assert "#SBATCH --account=lab\n" in printed.out
    assert "gpu" not in printed.out


def test_what_is_queued_is_not_submitted_twice(slurm: FakeSlurm, capsys: Capture) -> None:
    words = "launch slurm --job-name it -- train packed"
    assert answer(words, capsys)[0] == 0
    slurm.answer("squeue", "RUNNING\n")
    code, printed = answer(words, capsys)
    assert (code, "job 17" in printed) == (2, True)
    slurm.answer("squeue", "")
    assert answer(words, capsys)[0] == 0
    slurm.fail("squeue", "slurm_load_jobs error: Invalid job id specified")
    assert answer(words, capsys)[0] == 0
    slurm.fail("squeue", "Unable to contact slurm controller")
    assert answer(words, capsys)[0] == 1


def test_what_sbatch_refuses_is_told(slurm: FakeSlurm, capsys: Capture) -> None:
    slurm.answer("sbatch", "")
    slurm.fail("sbatch", "sbatch: error: invalid partition specified: gpu")
    code, printed = answer("launch slurm --partition gpu -- train packed", capsys)
    assert (code, printed) == (1, "stoker: sbatch: error: invalid partition specified: gpu\n")


def test_without_slurm(slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, printed = answer("launch slurm -- train packed", capsys)
    assert (code, "no sbatch here" in printed) == (1, True)


def test_the_end_of_a_job(
    slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("jobs").mkdir()
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    code, printed = answer("requeue jobs --progress runs/x --code 75", capsys)
    assert (code, slurm.calls()[-1]) == (75, "scontrol requeue 17")
    assert printed == "job 17: stopped at the start, saved: queued again\n"
    code, printed = answer("requeue jobs --progress runs/x --code 75", capsys)
    assert (code, "--time" in printed) == (75, True)
    assert slurm.calls().count("scontrol requeue 17") == 1
    assert answer("requeue jobs --code 0", capsys)[0] == 0
    ends = Path("jobs/ends-17.jsonl").read_text().splitlines()
    assert [json.loads(line)["code"] for line in ends] == [75, 75, 0]
    assert answer("requeue nowhere --code 0", capsys)[0] == 2


def test_progress_of_sets_and_grids(tmp_path: Path) -> None:
    packed, grid = tmp_path / "packed", tmp_path / "grid"
    assert progress_of([]).marks == ()
    assert progress_of([packed]).marks == (0,)
    (packed / "train").mkdir(parents=True)
    for number in range(3):
        (packed / "train" / f"{number:05d}.tar").touch()
    (grid / "plans").mkdir(parents=True)
    for number in range(4):
        (grid / "cells" / str(number)).mkdir(parents=True)
    (grid / "cells" / "0" / "result.json").touch()
    both = progress_of([grid, packed])
    assert (both.marks, both.text) == ((1, 0, 3), "1 cell, 3 shards")
