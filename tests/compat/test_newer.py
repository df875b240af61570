"""What a newer version wrote is refused in one sentence and left as it is."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from chaos.trainers import Trainers
from compat.kept import FORMAT_1, INTERRUPTED, RECIPES, command
from samples import image_folder
from stoker.cli import main
from stoker.commit import json_bytes, sha256_file
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from stoker.data.seal import sealed
from stoker.errors import BAD_REQUEST, NewerFormat, StokerError
from stoker.run.directory import Run
from stoker.survive.checkpoint import read_checkpoint, write_checkpoint
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.manifest import manifest_of

KEPT = INTERRUPTED[0]
NO_FORMATS = [0, -1, "1", 1.0, True, None, [1]]
SENTENCE = "has format 2, this version of Stoker reads format 1: use a newer version of Stoker"


def contents(root: Path) -> dict[str, bytes]:
    """Every file below a folder, with its bytes."""
    paths = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(shutil.copytree(KEPT.path, tmp_path / "run"))


def change_record(run: Run, number: object) -> None:
    path = run.path / "run.json"
    path.write_bytes(json_bytes(json.loads(path.read_bytes()) | {"format": number}))


def change_newest(run: Run, number: object) -> Path:
    """Write another format into the newest checkpoint, with a true marker."""
    checkpoints = Checkpoints(run.path)
    folder = checkpoints.folder / checkpoints.names()[0]
    manifest = folder / "manifest.json"
    manifest.write_bytes(json_bytes(json.loads(manifest.read_bytes()) | {"format": number}))
    (folder / "COMMITTED").write_text(sha256_file(manifest))
    return folder


def verbs(run: Run) -> dict[str, list[str]]:
    return {
        "train": KEPT.argv(run.path),
        "explain": ["explain", str(run.path)],
        "show-config": ["show-config", str(run.path)],
    }


@pytest.mark.parametrize("verb", ["train", "explain", "show-config"])
def test_a_newer_run_is_refused(verb: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    change_record(run, 2)
    before = contents(run.path)
    assert main(verbs(run)[verb]) == BAD_REQUEST
    assert capsys.readouterr().err == f"stoker: {run.path} {SENTENCE}\n"
    assert contents(run.path) == before


@pytest.mark.parametrize("verb", ["train", "explain", "show-config"])
@pytest.mark.parametrize("number", NO_FORMATS)
def test_a_run_with_no_format_number_is_damaged(
    number: object, verb: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    change_record(run, number)
    assert main(verbs(run)[verb]) == BAD_REQUEST
    assert "run.json is damaged (its format is" in capsys.readouterr().err


def test_a_newer_checkpoint_is_never_set_aside(run: Run) -> None:
    folder, checkpoints = change_newest(run, 2), Checkpoints(run.path, keep=1)
    before = contents(run.path)
    message = re.escape(f"{folder} {SENTENCE}")
    for refuse in (checkpoints.newest, checkpoints.recover, checkpoints.refuse_newer):
        with pytest.raises(NewerFormat, match=message):
            refuse()
    with pytest.raises(NewerFormat, match=message):
        read_checkpoint(folder)
    assert contents(run.path) == before


def test_a_newer_checkpoint_is_never_pruned_or_written_over(run: Run) -> None:
    folder = change_newest(run, 2)
    before = contents(folder)
    checkpoints = Checkpoints(run.path, keep=1)
    older = read_checkpoint(checkpoints.folder / checkpoints.names()[1])
    steps = int(folder.name)
    for step in (steps, steps + 1, steps + 2):
        older.facts |= {"step": step, "best": 0.0}
        checkpoints.save(older)
        checkpoints.wait()
    assert contents(folder) == before
    assert (checkpoints.folder / f"{folder.name}-2").exists() is False  # pruned, as it may be
    assert manifest_of(checkpoints.folder / f"{steps + 2:09d}")


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_refuses_a_newer_checkpoint_and_changes_nothing(
    ranks: int, run: Run, pinned_trainers: Trainers, tmp_path: Path
) -> None:
    folder = change_newest(run, 2)
    checkpoints, attempts = contents(folder.parent), run.attempts()
    codes = pinned_trainers.train(KEPT.argv(run.path), tmp_path / "log", ranks=ranks)
    assert codes == [BAD_REQUEST] * ranks
    assert (tmp_path / "log").read_text().count(f"stoker: {folder} {SENTENCE}\n") == ranks
    assert contents(folder.parent) == checkpoints
    assert run.attempts() == attempts


@pytest.mark.parametrize("number", NO_FORMATS)
def test_a_checkpoint_with_no_format_number_is_torn(number: object, run: Run) -> None:
    folder = change_newest(run, number)
    assert manifest_of(folder) is None
    snapshot, torn = Checkpoints(run.path).recover()
    assert snapshot is not None and snapshot.name < folder.name
    assert torn == [folder.name]
    assert folder.with_name(f"{folder.name}.torn").exists()


def test_what_is_written_today_carries_its_format(
    run: Run, pinned_trainers: Trainers, tmp_path: Path
) -> None:
    snapshot, _ = Checkpoints(run.path).newest()
    assert snapshot is not None and "format" not in snapshot.facts
    write_checkpoint(tmp_path / "one", snapshot)
    assert read_checkpoint(tmp_path / "one").facts["format"] == 1
    assert "format" not in run.record
    new = Run(tmp_path / "new")
    argv = command(FORMAT_1 / "packed-raw", new.path, next(iter(RECIPES)), 1)
    assert pinned_trainers.train(argv, tmp_path / "log") == [0]
    assert new.record["format"] == 1


def describe(path: Path, number: object) -> None:
    file = path / "dataset.json"
    text = {**json.loads(file.read_bytes()), "format": number}
    del text["digest"]
    file.write_bytes(json_bytes(sealed(text)))


def test_a_newer_set_is_refused_and_never_packed_over(tmp_path: Path) -> None:
    path = shutil.copytree(FORMAT_1 / "packed-raw", tmp_path / "set")
    describe(path, 3)
    before = contents(path)
    sentence = "has format 3, this version of Stoker reads formats 1 to 2: use a newer version"
    with pytest.raises(NewerFormat, match=re.escape(f"{path} {sentence}")):
        Dataset(path)
    with pytest.raises(StokerError):
        pack(image_folder(tmp_path / "photos", images=2), path, workers=1)
    assert contents(path) == before


@pytest.mark.parametrize("number", NO_FORMATS)
def test_a_set_with_no_format_number_is_damaged(number: object, tmp_path: Path) -> None:
    path = shutil.copytree(FORMAT_1 / "packed-raw", tmp_path / "set")
    describe(path, number)
    with pytest.raises(StokerError, match=r"dataset\.json is damaged \(its format is"):
        Dataset(path)
