"""stoker doctor: what is refused, what help costs, and which set is examined."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from samples import image_folder
from stoker.cli import main
from stoker.cli.doctor import Visit, parser, some_files
from stoker.cli.flags import resolve_flags
from stoker.data.packing.pack import default_out, pack
from stoker.errors import BAD_REQUEST


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "no packed set and no folder of images at nowhere"),
        (["--ranks", "0"], "--ranks must be at least 1, not 0"),
        (["--nodes", "2"], "--nodes and --rendezvous go together"),
        (["--nodes", "x", "--rendezvous", "127.0.0.1:1"], "--nodes is MIN:MAX or a number"),
        (["--nodes", "2", "--rendezvous", "here"], "--rendezvous is HOST:PORT"),
        (["--seconds", "nan"], "--seconds must be above 0"),
        (["--json", "no/such/folder.json"], "no folder for --json"),
        (["--model", "resnet9", "--batch-size", "0"], "batch_size must be at least 1"),
        (["--modle", "x"], "did you mean '--model'?"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == BAD_REQUEST
    assert complaint in capsys.readouterr().err


def test_help_needs_none_of_the_large_libraries() -> None:
    code = (
        "import sys; from stoker.cli import doctor\n"
        "try: doctor.run(['--help'])\n"
        "except SystemExit: print(sorted({'torch', 'cv2', 'pyarrow'} & set(sys.modules)))"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said.splitlines()[-1] == "[]"


def visit(*words: str) -> Visit:
    parsed = parser().parse(words)
    return Visit(parsed, resolve_flags(parsed).recipe, words)


def test_the_packed_copy_of_a_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = image_folder(tmp_path / "photos", classes=2, images=3, val=1)
    assert visit(str(folder)).dataset is None
    assert visit().dataset is None
    packed = pack(folder, default_out(str(folder)), workers=1)
    for name in (folder, packed):
        found = visit(str(name)).dataset
        assert found is not None and found.path.resolve() == packed.resolve()


def test_some_files_of_a_folder_are_enough(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", classes=2, images=3, val=1)
    (folder / "empty").touch()
    found = some_files(folder)
    assert len(found) == 8 and all(path.stat().st_size for path in found)
