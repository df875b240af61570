"""`stoker train --model ./net.py:build` as a user types it, and what the docs show of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from own_models import NET, write
from pages import ROOT, read_page
from samples import image_folder
from stoker.run.directory import Run

QUICK = "--image-size 16 --batch-size 16 --no-rehearse"
pytestmark = pytest.mark.exact


def stoker(folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stoker", *words.split()],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=500,
    )


PROGRAM, COMMAND = read_page(ROOT / "docs" / "models.md").blocks[:2]
"""The file of docs/models.md and the command below it."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with photographs, packed by the commands of the docs."""
    root = tmp_path_factory.mktemp("user")
    image_folder(root / "photos", images=20, val=4, size=(40, 32))
    write(root, PROGRAM.text)
    (command,) = COMMAND.commands()
    done = stoker(root, f"{command.removeprefix('stoker ')} {QUICK} --epochs 1")
    assert done.returncode == 0, done.stderr
    return root


def test_the_docs_are_right(photos: Path) -> None:
    (run,) = (photos / "runs").iterdir()
    assert re.fullmatch(r"photos-first-look-net-[0-9a-f]+", run.name)
    assert (run / "model.py").read_text() == PROGRAM.text


def test_a_life_of_a_run(photos: Path, tmp_path: Path) -> None:
    data, file, run = photos / "photos-packed", write(tmp_path), Run(tmp_path / "run")
    command = f"train {data} --run run {QUICK} --model"
    assert stoker(tmp_path, f"{command} net.py:build --epochs 1 --ranks 2").returncode == 0
    # A changed text needs consent, and both texts are kept.
    file.write_text(NET.replace("0.2", "0.3"))
    refused = stoker(tmp_path, f"{command} ./net.py:build --epochs 1")
    assert refused.returncode == 2
    assert "--allow-change model_code" in refused.stderr
    words = "./net.py:build --epochs 2 --allow-change model_code,epochs"
    assert stoker(tmp_path, f"{command} {words}").returncode == 0
    assert (run.path / "model.py").read_text() == NET
    assert (run.path / "model-2.py").read_text() == file.read_text()
    # Weights of other shapes do not go on, and nothing is lost.
    file.write_text(NET.replace("4", "5"))
    words = "./net.py:build --epochs 3 --allow-change model_code,epochs"
    other = stoker(tmp_path, f"{command} {words}")
    assert (other.returncode, "another model" in other.stderr) == (2, True)
    assert run.record["changes"][-1]["step"] == 3
    # Without the file, from another directory, with the copy in the run.
    file.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    words = f"train {data} --run {run.path} {QUICK} --model net.py:build --epochs 3"
    gone = stoker(elsewhere, f"{words} --allow-change epochs")
    assert (gone.returncode, "--trust-code" in gone.stderr) == (2, True)
    assert stoker(elsewhere, f"{words} --allow-change epochs --trust-code").returncode == 0
    assert stoker(elsewhere, f"{words} --trust-code").stdout.count("finished already") == 1
    assert len(run.steps()) == 11


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--model net.py:build", r"no model at .*net\.py"),
        ("--model bad.py:build", r"bad\.py:1: not valid Python"),
        ("--model sibling.py:build", r"sibling\.py:1: it imports blocks, which is beside it"),
        ("--model fails.py:build", r"fails\.py:2: build\(2\) failed: ZeroDivisionError"),
        ("--recipe theirs.toml", r"theirs\.toml:1 names code to run"),
    ],
)
def test_a_mistake_is_one_line_before_the_folder_is_packed(
    tmp_path: Path, words: str, named: str
) -> None:
    image_folder(tmp_path / "photos", images=2)
    write(tmp_path, "def build(n)\n", "bad.py")
    write(tmp_path, "import blocks\ndef build(n): pass\n", "sibling.py")
    write(tmp_path, "", "blocks.py")
    write(tmp_path, "def build(n):\n    return 1 / 0\n", "fails.py")
    (tmp_path / "theirs.toml").write_text('model = "./fails.py:build"\n')
    before = sorted(tmp_path.rglob("*"))
    done = stoker(tmp_path, f"train photos {words}")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.search(named, line)
    assert sorted(tmp_path.rglob("*")) == before
