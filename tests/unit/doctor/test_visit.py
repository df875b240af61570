"""An examination: which set is found, what is yielded, and what its figures hold."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path

import pytest

from samples import image_folder
from stoker.data.packing.pack import default_out, pack
from stoker.doctor import visit as module
from stoker.doctor.ranks import RankOptions
from stoker.doctor.visit import Visit, VisitOptions, some_files
from stoker.recipe.recipe import Recipe
from stoker.show.machine.doctor import FORMATS, lines

QUICK = Recipe(model="resnet9_w1", image_size=16, batch_size=4)


def visit(data: str | None = None) -> Visit:
    return Visit(VisitOptions(QUICK, data, 0.05, RankOptions()))


def test_the_packed_copy_of_a_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = image_folder(tmp_path / "photos", classes=2, images=3, val=1)
    assert visit(str(folder)).dataset is None
    assert visit().dataset is None
    packed = pack(folder, default_out(str(folder)), workers=1)
    for name in (folder, packed):
        dataset = visit(str(name)).dataset
        assert dataset is not None and dataset.path.resolve() == packed.resolve()


def test_some_files_of_a_folder_are_enough(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", classes=2, images=3, val=1)
    (folder / "empty").touch()
    files = some_files(folder)
    assert len(files) == 8 and all(path.stat().st_size for path in files)


def test_every_finding_has_a_format() -> None:
    names = {
        node.value.elts[0].value
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple)
        if isinstance(node.value.elts[0], ast.Constant)
    }
    assert names == set(FORMATS)


def test_a_folder_that_is_not_packed_is_examined_but_not_loaded_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    examination = visit(str(image_folder(tmp_path / "photos", classes=2, images=3, val=1)))
    findings = list(examination.findings())
    assert [name for name, _ in findings] == [
        "environment",
        "storage begins",
        "storage",
        "loader begins",
        "not measured",
        "compute begins",
        "compute",
        "precisions",
        "neighbours",
    ]
    assert capsys.readouterr() == ("", ""), "a visit prints nothing"
    assert all(lines(name, *values) for name, values in findings[:7])
    figures = json.loads(json.dumps(examination.figures))
    assert list(figures) == [
        "recipe",
        "environment",
        "odd",
        "storage",
        "compute",
        "cores_used_by_others",
    ]
    assert figures["storage"]["image_bytes"] > 0
    assert figures["compute"][0]["images_per_s"] > 0
