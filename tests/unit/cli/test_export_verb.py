"""`stoker export`: mistakes are answered at once and without torch, in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from golden import check_golden
from stoker.cli import main

RECORD = {
    "recipe": "r",
    "values": {"model": "resnet9_w2"},
    "data": "packed",
    "fingerprint": "f",
    "classes": ["a", "b"],
    "lanes": 1,
    "changes": [],
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run that has no checkpoint, an export, and a folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("run", "photos", "model"):
        Path(name).mkdir()
    Path("run/run.json").write_text(json.dumps(RECORD))
    Path("photos/cat.jpg").write_bytes(b"")
    Path("model/config.json").write_text('{"stoker": {}}')
    return tmp_path


MISTAKES = [
    "photos out",
    "model out",
    "run photos",
    "run photos/cat.jpg",
    "run model",
    "run run",
    "run out --to pickle",
    "run out --to onnx",
    "run out --checkpoint 000000001",
    "run out",
    "run",
]


def test_golden_mistakes(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.use.exported.files.find_spec", lambda name: None)
    texts = []
    for words in MISTAKES:
        assert main(["export", *words.split()]) == 2
        printed = capsys.readouterr().err.splitlines()
        assert len(printed) == 1, printed
        texts += [f"$ stoker export {words}", *printed]
    check_golden("export_mistakes", texts)
    assert not Path("out").exists()
    assert [item.name for item in place.iterdir() if item.name.startswith(".")] == []


def test_golden_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    check_golden("help_export", capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("words", [["--help"], ["photos", "out"], ["run", "photos"]])
def test_torch_is_not_imported_for_mistakes(place: Path, words: list[str]) -> None:
    code = (
        "import sys\nfrom stoker.cli import main\n"
        f"try:\n    main({['export', *words]!r})\nexcept SystemExit:\n    pass\n"
        "sys.exit(3 if 'torch' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 0
