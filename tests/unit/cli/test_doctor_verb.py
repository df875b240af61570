"""stoker doctor: what is refused, and what help costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from golden import check_golden
from samples import image_folder
from stoker.cli import main
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.errors import BAD_REQUEST, FINISHED

MEMORIES = ("0", "-4", "x", "1e9", "nan", "inf", "", "16GB")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["nowhere"], "nowhere"),
        (["--ranks", "0"], "--ranks"),
        (["--nodes", "2"], "--rendezvous"),
        (["--nodes", "x", "--rendezvous", "127.0.0.1:1"], "--nodes"),
        (["--nodes", "2", "--rendezvous", "here"], "--rendezvous"),
        (["--seconds", "nan"], "--seconds"),
        (["--json", "no/such/folder.json"], "--json"),
        *((["--memory", value], "--memory") for value in MEMORIES),
        (["--memory", "16", "--model", "resnet51"], "resnet50"),
        (["--memory", "16", "--ranks", "0"], "--ranks"),
        (["--memory", "16", "--nodes", "x"], "--nodes"),
        (["--memory", "16", "--ranks", "64"], "--batch-size"),
        (["--memory", "16", "nowhere"], "nowhere"),
        (["--memory", "16", "--model", "resnet9", "--image-size", "4"], "--image-size"),
        (["--model", "resnet9", "--batch-size", "0"], "batch_size"),
        (["--modle", "x"], "'--model'"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == BAD_REQUEST
    message = capsys.readouterr().err
    assert name in message and len(message.splitlines()) == 1


def test_messages_golden(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["nowhere"], ["--seconds", "nan"], ["--json", "no/such/folder.json"]):
        main(["doctor", *words])
    for value in MEMORIES:
        main(["doctor", "--memory", value])
    check_golden("doctor_verb", capsys.readouterr().err.splitlines())


def test_memory_is_answered_without_data_and_without_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "doctor --memory 16 --model resnet9_w4 --image-size 32 --json figures.json --ranks 2"
    assert main(words.split()) == FINISHED
    title, answer, *_ = capsys.readouterr().out.splitlines()
    assert "resnet9_w4 on each of 2 GPUs of 16 GB" in title and answer.startswith("  fits: ")
    figures = json.loads(Path("figures.json").read_text())
    assert (figures["memory_gb"], figures["micro_batch"], figures["classes"]) == (16, 0, 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]


def test_memory_takes_the_classes_of_a_packed_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = image_folder(tmp_path / "photos", images=4, val=0, size=(8, 8), suffix="png")
    data = pack(photos, tmp_path / "set", storage=Storage(codec="raw"), val_share=0, workers=1)
    classes = len(Dataset(data).classes)
    assert main(["doctor", str(data), "--memory", "8"]) == FINISHED
    assert f"{classes} classes" in capsys.readouterr().out.splitlines()[0]


def test_help_needs_none_of_the_large_libraries() -> None:
    code = (
        "import sys; from stoker.cli import doctor\n"
        "try: doctor.run(['--help'])\n"
        "except SystemExit: print(sorted({'torch', 'cv2', 'pyarrow'} & set(sys.modules)))"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed.splitlines()[-1] == "[]"
