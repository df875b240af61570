"""stoker launch sky: the task file, what is refused, and what is on record."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from golden import check_golden
from pages import commands_in
from rented import RentedMachine
from stoker.cli import main
from stoker.cli.launch_sky import name_of, with_value
from stoker.errors import BAD_REQUEST, FAILED, FINISHED, BadRequest
from stoker.fleet.sky.records import GONE, LAUNCHED, LAUNCHING, CloudJob, read_job, write_job

BUCKET = ["--bucket", "s3://mine/runs"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RentedMachine:
    """A folder with a packed set, and a stand-in for the command sky."""
    machine: RentedMachine = RentedMachine.rent(tmp_path)
    (tmp_path / "photos-packed").mkdir()
    (tmp_path / "photos-packed" / "dataset.json").touch()
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", machine.environment["PATH"])
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    return machine


def launch(*words: str, data: str = "photos-packed", flags: str = "--epochs 3") -> int:
    return main(["launch", "sky", *BUCKET, *words, "--", "train", data, *flags.split()])


def jobs(desk: RentedMachine) -> list[CloudJob]:
    read = [read_job(folder) for folder in sorted((desk.root / "jobs").iterdir())]
    return [job for job in read if isinstance(job, CloudJob)]


def calls(desk: RentedMachine) -> list[list[str]]:
    return [json.loads(line) for line in (desk.root / "calls.jsonl").read_text().splitlines()]


def test_help_golden(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in ("launch --help", "launch sky --help", "lease --help", "runs --help"):
        with pytest.raises(SystemExit):
            main(words.split())
    check_golden("help_sky", capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("words", ["runs", "lease run", "launch sky --dry-run"])
def test_no_verb_needs_the_heavy_libraries(desk: RentedMachine, words: str) -> None:
    command = [*words.split(), *([*BUCKET, "--", "train", "photos-packed"] * ("sky" in words))]
    script = "import sys; from stoker.cli import main; main(sys.argv[1:]); assert not "
    script += "{'torch', 'timm', 'cv2', 'pyarrow'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", script, *command], check=True)


@pytest.mark.parametrize("kind", ["spot", "on-demand"])
def test_task_golden(desk: RentedMachine, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    options = ["--gpus", "A10G:1", "--cloud", "aws", "--region", "us-east-1", "--disk", "200"]
    flags = "--model resnet50 --ranks 1"
    assert launch("--dry-run", f"--{kind}", *options, "--secret", "TOKEN", flags=flags) == FINISHED
    text = capsys.readouterr().out.replace(str(desk.root), "/home/me")
    check_golden(f"sky_task_{kind.replace('-', '_')}", text.splitlines())
    assert not (desk.root / "jobs").exists()
    assert not (desk.root / "calls.jsonl").exists()


def test_a_launch_is_on_record_before_skypilot_is_called(
    desk: RentedMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STAND_IN_CODE", "1")
    assert launch("--yes") == FAILED
    (job,) = jobs(desk)
    assert (job.state, job.may_be_billed) == (LAUNCHING, True)
    assert "stoker runs --refresh" in capsys.readouterr().err


def test_a_launch_writes_the_task_and_the_wheel(desk: RentedMachine) -> None:
    assert launch("--yes", "--gpus", "L4:1", "--secret", "TOKEN") == FINISHED
    (job,) = jobs(desk)
    assert job.state == LAUNCHED
    folder = desk.root / "jobs" / job.name
    assert {path.suffix for path in folder.iterdir()} == {".yaml", ".whl", ".json"}
    (words,) = calls(desk)
    assert words == [
        *("jobs", "launch", "-n", job.name, "-d", "--secret", "TOKEN", "-y"),
        f"jobs/{job.name}/sky.yaml",
    ]


def test_on_demand_is_a_machine_of_its_own(desk: RentedMachine) -> None:
    assert launch("--yes", "--on-demand", "--job-name", "mine") == FINISHED
    assert calls(desk) == [["launch", "-c", "mine", "-d", "-y", "jobs/mine/sky.yaml"]]


def test_the_same_job_is_not_launched_twice(
    desk: RentedMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("--yes") == FINISHED
    assert launch("--yes") == BAD_REQUEST
    assert "its end was not read back" in capsys.readouterr().err
    (job,) = jobs(desk)
    write_job(desk.root / "jobs" / job.name, job.with_state(GONE, time.time()))
    assert launch("--yes") == FINISHED


def test_no_secret_reaches_a_file(desk: RentedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2-value")
    assert launch("--yes", "--secret", "TOKEN") == FINISHED
    for path in (desk.root / "jobs").rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes()
    assert "hunter2" not in (desk.root / "calls.jsonl").read_text()


def test_files_of_the_command_are_mounted(
    desk: RentedMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk.root / "my recipe.toml").write_text("epochs = 2\n")
    (desk.root / "w.safetensors").touch()
    (desk.root / "net.py").write_text("def build(classes): ...\n")
    words = ["launch", "sky", *BUCKET, "--dry-run", "--", "train", "photos-packed"]
    words += ["--recipe", "my recipe.toml", "--weights=w.safetensors", "--model", "net.py:build"]
    assert main([*words, "--run", "old/place"]) == FINISHED
    text = capsys.readouterr().out
    train = next(line for line in text.splitlines() if line.startswith("  stoker train"))
    assert shlex.split(train)[2:] == [
        *("data/photos-packed", "--recipe", "files/recipe/my-recipe.toml"),
        *("--weights=files/weights/w.safetensors", "--model", "files/model/net.py:build"),
        *("--run", "runs/place"),
    ]
    assert "source: s3://mine/runs/place" in text
    for name in ("my recipe.toml", "w.safetensors", "net.py"):
        assert str(desk.root / name) in text


def test_a_set_in_a_bucket_is_copied_from_there(
    desk: RentedMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("--dry-run", data="s3://sets/photos-packed") == FINISHED
    text = capsys.readouterr().out
    assert "~/stoker-job/data/photos-packed: s3://sets/photos-packed\n" in text
    assert "stoker train data/photos-packed" in text


MISTAKES = [
    "launch sky",
    "launch sky --bucket s3://mine -- pack photos",
    "launch sky -- train photos-packed",
    "launch sky --bucket mine -- train photos-packed",
    "launch sky --bucket s3://mine -- train photos",
    "launch sky --bucket s3://mine -- train nowhere",
    "launch sky --bucket s3://mine -- train photos-packed --epochz 3",
    "launch sky --bucket s3://mine --hours 0 -- train photos-packed",
    "launch sky --bucket s3://mine --hours nan -- train photos-packed",
    "launch sky --bucket s3://mine --stall=-1 -- train photos-packed",
    "launch sky --bucket s3://mine --stall nan -- train photos-packed",
    "launch sky --bucket s3://mine --stall inf -- train photos-packed",
    "launch sky --bucket s3://mine --disk=-5 -- train photos-packed",
    "launch sky --bucket s3://mine --cpus nan -- train photos-packed",
    "launch sky --bucket s3://key:hunter2@mine/x -- train photos-packed",
    "launch sky --bucket=https://key:hunter2@mine/x -- train photos-packed",
    "launch sky --bucket r2://mine/x?sig=hunter2 -- train photos-packed",
    "launch sky --bucket s3://mine -- train https://key:hunter2@host/x",
    "launch sky --bucket s3://mine -- train photos-packed --run s3://key:hunter2@mine/x",
    "launch sky --bucket s3://mine --gpu A100:1 -- train photos-packed",
    "launch sky --bucket s3://mine --gpus= -- train photos-packed",
    "launch sky --bucket s3://mine --resource zone -- train photos-packed",
    "launch sky --bucket s3://mine --resource autostop=5 -- train photos-packed",
    "launch sky --bucket s3://mine --secret TOKEN=hunter2 -- train photos-packed",
    "launch sky --bucket s3://mine -- train photos-packed --nodes 2",
    "launch sky --bucket s3://mine -- train photos-packed --weights nowhere",
    "launch sky --bucket s3://mine --job-name x\x1b[2J --gpus a\nb -- train photos-packed",
    "launch sky --bucket s3://mine -- train photos-packed",
    "launch skye -- train photos-packed",
    "lease run",
    "lease run --process 1 --hours 0",
    "lease run --process 999999999 --hours 1",
    "lease run --process 1 --hours 1 --end ",
    "lease run --process 1 --hours 1 --end 'x",
    "runs nowhere",
    "runs --json nowhere/figures",
]


def test_mistakes_golden(
    desk: RentedMachine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in MISTAKES:
        assert main(words.split(" ")) == BAD_REQUEST, words
    (desk.root / "jobs").touch()
    assert launch("--yes") == FAILED
    (desk.root / "jobs").unlink()
    monkeypatch.setenv("PATH", str(desk.root))
    assert launch("--yes") == FAILED
    lines = capsys.readouterr().err.splitlines()
    assert not any("hunter2" in line for line in lines)
    check_golden("sky_mistakes", lines)
    assert not (desk.root / "jobs").exists()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("train-photos-1", "train-photos-1"),
        ("my set: 'x'", "my-set-x"),
        ("../../etc", "etc"),
        ("", "job"),
        ("123", "job-123"),
        ("ä☃", "job"),
        ("-x-", "x"),
    ],
)
def test_names_that_every_provider_takes(text: str, name: str) -> None:
    assert name_of(text) == name


def test_long_names_are_cut_and_stay_apart() -> None:
    first, second = name_of("x" * 100 + "1"), name_of("x" * 100 + "2")
    assert first != second
    assert len(first) <= 40


@pytest.mark.parametrize(
    ("words", "name", "changed"),
    [
        ("x --run x", "data", "NEW --run x"),
        ("x --run x", "run", "x --run NEW"),
        ("--run=x x", "run", "--run=NEW x"),
        ("--run=x x", "data", "--run=x NEW"),
        ("--recipe x --epochs 3 x", "data", "--recipe x --epochs 3 NEW"),
    ],
)
def test_one_value_is_replaced(words: str, name: str, changed: str) -> None:
    assert with_value(words.split(), name, "x", "NEW") == changed.split()


def test_the_commands_of_the_page_work(desk: RentedMachine) -> None:
    page = (Path(__file__).parents[3] / "docs" / "cloud.md").read_text()
    lines = commands_in(page.partition("\n## ")[0])
    assert len(lines) == 4
    for line in lines[1:]:  # the set is packed
        assert main(shlex.split(line)[1:]) == FINISHED, line
    (job,) = jobs(desk)
    assert job.name.startswith("train-photos-packed-")


def test_a_value_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadRequest):
        with_value(["photos"], "data", "other", "NEW")
