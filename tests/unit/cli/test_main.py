"""The command as a whole: quick to answer, light to start, one line for each mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stoker
from golden import check_golden
from measured import held, measured
from stoker.cli import VERBS, main
from stoker.errors import BAD_REQUEST, FINISHED

SLOWEST_S = 0.5
ANSWERS = {
    "--help": FINISHED,
    "--version": FINISHED,
    "train --help": FINISHED,
    "show-config --help": FINISHED,
    "explain --help": FINISHED,
    "verify --help": FINISHED,
    "verify": BAD_REQUEST,
    "verify x --thraeds 2": BAD_REQUEST,
    "train --epochz 3 x": BAD_REQUEST,
    "train x --epochs three": BAD_REQUEST,
    "train": BAD_REQUEST,
    "trian x": BAD_REQUEST,
    "explain nowhere": BAD_REQUEST,
    "train x --image-size 4": BAD_REQUEST,
    "train x --pretrained": BAD_REQUEST,
    "train x --model resnet51": BAD_REQUEST,
    "doctor --model resnet51": BAD_REQUEST,
    "prices --help": FINISHED,
    "prices --gpu nosuch": BAD_REQUEST,
    "selftest --help": FINISHED,
    "selftest --minutes 0": BAD_REQUEST,
}
"""What is said without touching an image or a network."""

MODULES = """
import json, sys
from stoker.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as leaving:
    code = leaving.code
print(json.dumps([code, [name for name in sys.modules if "." not in name]]))
"""


def stoker_process(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stoker", *words], capture_output=True, text=True, cwd=cwd
    )


def loaded_by(words: list[str]) -> tuple[int, set[str]]:
    """The exit code of a command, and the modules it has imported."""
    script = [sys.executable, "-c", MODULES, *words]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize("words", ["--help", "train --help", "train --epochz 3 x", "trian x"])
@measured(10)
def test_an_answer_takes_less_than_half_a_second(words: str) -> None:
    began = time.perf_counter()
    assert stoker_process(*words.split()).returncode == ANSWERS[words]
    taken = time.perf_counter() - began
    held(taken < SLOWEST_S, taken)


@pytest.mark.parametrize(("words", "code"), ANSWERS.items())
def test_answers_need_none_of_the_heavy_libraries(words: str, code: int) -> None:
    found, modules = loaded_by(words.split())
    assert found == code
    assert not modules & {"torch", "timm", "cv2", "pyarrow", "torchvision"}


@pytest.mark.parametrize("words", ["pack --help", "pack --qualty 3 x", "train nowhere"])
def test_what_needs_images_needs_no_network(words: str) -> None:
    _, modules = loaded_by(words.split())
    assert not modules & {"torch", "timm", "torchvision"}


def test_importing_the_package_loads_no_library() -> None:
    code = "import sys, stoker; print([m for m in ('torch', 'numpy', 'cv2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], []])
def test_help_names_every_verb_and_exit_code(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == FINISHED
    text = capsys.readouterr().out
    assert all(f"\n  {verb} " in text for verb in VERBS)
    assert all(f"{code} " in text for code in (0, 75, 2, 1))
    assert all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([verb, "--help"])
    assert leaving.value.code == FINISHED
    assert f"usage: stoker {verb}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == FINISHED
    assert capsys.readouterr().out == f"stoker {stoker.__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        "show-config --epochs 7 --ema",
        "--epochs 7 show-config --ema",
        "--epochs 7 --ema show-config",
        "--ema --epochs=7 show-config",
    ],
)
def test_the_verb_may_come_after_flags(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == FINISHED
    text = capsys.readouterr().out
    assert "epochs = 7 " in text
    assert "ema = true " in text


THE_VERBS = (
    "the verbs are train, pack, verify, upload, fetch, doctor, selftest, bench, plan, evaluate, "
    "predict, export, watch, report, explain, runs, track, prices, sweep, tickets, work, launch, "
    "requeue, lease, show-config, show-batch"
)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("trian", "did you mean 'train'?"),
        ("pakc", "did you mean 'pack'?"),
        ("explian", "did you mean 'explain'?"),
        ("show_config", "did you mean 'show-config'?"),
        ("show", "did you mean 'show-config' or 'show-batch'?"),
        ("config", "did you mean 'show-config'?"),
        ("eval", "did you mean 'evaluate'?"),
        ("validate", "did you mean 'evaluate'?"),
        ("benchmark", "did you mean 'bench'?"),
        *((word, THE_VERBS) for word in ("xyzzy", "serve", "resume", "prepare", "profile", "t")),
    ],
)
def test_an_unknown_verb_is_answered_with_the_nearest(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, "--epochs", "3"]) == BAD_REQUEST
    assert capsys.readouterr().err == f"stoker: no verb called '{word}': {hint}\n"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with things that are not what they are taken for."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("neither run nor images")
    (tmp_path / "broken.toml").write_text("epochs = = 3\n")
    (tmp_path / "odd.toml").write_text("epochz = 3\n")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "sealed").mkdir()
    (tmp_path / "sealed" / "dataset.json").write_text("{}")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    return tmp_path


MISTAKES = [
    ("trian empty", "train"),
    ("train", "DATA"),
    ("train empty --epochz 3", "--epochs"),
    ("train --epochz 3 empty", "--epochs"),
    ("train --epochz=3 empty", "--epochs"),
    ("train empty --epochs three", "--epochs"),
    ("train empty --epochs 0", "at least 1"),
    ("train empty --epochs", "--epochs"),
    ("train empty --lr nan", "lr"),
    ("train empty --amp fp8", "bf16"),
    ("train empty --ranks 0", "--ranks"),
    ("train empty --ranks two", "--ranks"),
    ("train empty --ranks 99999 --batch-size 999999", "--ranks must be at most"),
    ("train empty --ranks 20", "too small for 20 ranks"),
    ("doctor --ranks 99999", "--ranks must be at most"),
    ("train empty more", "unknown word 'more'"),
    ("train empty --scheduler step", "decay_epochs"),
    ("train empty --recipe cifar10-quik", "cifar10-quick"),
    ("train empty --recipe nowhere.toml", "nowhere.toml"),
    ("train empty --recipe folder.toml", "folder.toml"),
    ("train empty --recipe broken.toml", "broken.toml"),
    ("train empty --recipe odd.toml", "odd.toml:1"),
    ("train empty", "no training images below empty"),
    ("train nowhere", "no folder, archive or table at nowhere"),
    ("train file.txt", "no folder, archive or table at file.txt"),
    ("train empty --image-size 4", "--image-size 8"),
    ("train empty --pretrained", "drop --pretrained"),
    ("train empty --model resnet5O", "resnet50"),
    ("train empty --model ResNet-18", "resnet18"),
    ("train empty --model resnet9_w0", "resnet9"),
    ("doctor --model resnet5O", "resnet50"),
    ("doctor --image-size 4", "--image-size 8"),
    ("train empty --run file.txt", "--run file.txt"),
    ("train empty --run file.txt/run", "--run file.txt/run"),
    ("train empty --run empty", "folder of the images"),
    ("train empty --run sealed", "packed set"),
    ("train empty --run sealed/run", "packed set"),
    ("train empty --run /proc/run", "cannot write in /proc"),
    ("train empty --run " + "x" * 300, "too long"),
    ("train empty --run loop/run", "--run loop/run"),
    ("bench data sealed --json empty", "--json empty"),
    ("doctor --json nowhere/figures", "--json nowhere/figures"),
    ("pack", "SOURCE"),
    ("pack nowhere", "no folder, archive or table at nowhere"),
    ("pack empty", "no training images below empty"),
    ("pack file.txt", "no folder, archive or table at file.txt"),
    ("verify", "SET"),
    ("verify nowhere", "nowhere is not a packed set"),
    ("verify empty", "stoker pack empty"),
    ("verify file.txt", "file.txt is not a packed set"),
    ("verify empty --threads -1", "--threads"),
    ("verify empty --threads two", "--threads"),
    ("explain", "RUN"),
    ("explain nowhere", "nowhere is not a run"),
    ("explain empty", "empty is not a run"),
    ("explain file.txt", "file.txt is not a run"),
    ("explain empty --epochs 3", "--epochs"),
    ("show-config empty", "empty is not a run"),
    ("show-config file.txt", "file.txt is not a run"),
    ("show-config --epochs 3.5", "whole number"),
]


@pytest.mark.parametrize(("words", "named"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_answered_in_one_line_that_names_it(
    desk: Path, words: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == BAD_REQUEST
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stoker: ")
    assert named in line


@pytest.mark.parametrize("verb", [*VERBS, "s3://key:hunter2@mine/x"])
@pytest.mark.parametrize("word", ["{}", "--run={}", "-- train {}", "--weights {}"])
def test_no_verb_takes_or_prints_a_password(
    desk: Path, verb: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [verb, *word.format("s3://key:hunter2@mine/x").split()]
    assert main(words) == BAD_REQUEST
    output = capsys.readouterr()
    assert output.err == (
        "stoker: a s3:// location must not hold credentials: set them in the environment\n"
    )
    assert not output.out
    assert not [path for path in desk.rglob("*") if "hunter2" in path.name]


def test_a_mistake_reaches_the_shell_without_a_traceback(desk: Path) -> None:
    done = stoker_process("explain", "empty", cwd=desk)
    assert (done.returncode, done.stdout) == (BAD_REQUEST, "")
    assert done.stderr == "stoker: empty is not a run (no run.json)\n"


@pytest.mark.parametrize("words", ["--help", "show-config", "train --help"])
def test_a_reader_that_had_enough_is_no_failure_to_complain_of(words: str) -> None:
    enough, full = os.pipe()
    os.close(enough)
    with os.fdopen(full, "w") as closed:
        command = [sys.executable, "-u", "-m", "stoker", *words.split()]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert done.stderr == ""


def test_a_mistake_leaves_nothing_behind(desk: Path) -> None:
    before = sorted(desk.rglob("*"))
    for words, _ in MISTAKES:
        if words.startswith(("train", "pack")):
            main(words.split())
    assert sorted(desk.rglob("*")) == before


@pytest.mark.parametrize("words", ["", "train", "train all"])
def test_help_golden(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The help on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    if words:
        with pytest.raises(SystemExit):
            main(["train", "--help-all" if words.endswith("all") else "--help"])
    else:
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    check_golden(f"help_{words.replace(' ', '_') or 'stoker'}", lines)


def test_mistakes_golden(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The answers of the parser; those of the verbs are in the golden files of their rooms."""
    for words in (
        "trian x",
        "xyzzy",
        "train x --epochz 3",
        "train x --xyzzyplugh",
        "train x more",
        "train x --phases 3",
        "train",
        "verify x --thraeds 2",
        "show-config empty --epochs 3",
        "train empty --image-size 4",
        "train empty --pretrained",
        "train empty --model resnet5O",
        "train empty --model xyzzyplugh",
        "train empty --run file.txt",
        "train empty --run empty",
        "train empty --run /proc/run",
        "doctor --json nowhere/figures",
        "doctor --json empty",
        "doctor --ranks two",
        "doctor --seconds long",
        "train empty --epochs",
        "train empty --profile 110..100",
        "train empty --profile 5",
        "train empty --profile 100..1100",
    ):
        assert main(words.split()) == BAD_REQUEST
    check_golden("cli_mistakes", capsys.readouterr().err.splitlines())


def test_the_last_line_of_a_job_is_not_stopped(tmp_path: Path) -> None:
    """SLURM signals it like everything before it, and it has the job queued again."""
    script = """
import os, signal, sys
from stoker.cli import main, requeue
record_end = requeue.record_end
requeue.record_end = lambda *given: os.kill(os.getpid(), signal.SIGTERM) or record_end(*given)
sys.argv[1:] = ["requeue", sys.argv[1], "--code", "0"]
sys.exit(main())
"""
    words = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (FINISHED, "")
    assert done.stdout.startswith("job ")
