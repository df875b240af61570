"""Nothing wrong in the folder of an export is used, and no name in it leads out of the folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from exports import config_of, tiny_run, write_config
from stoker.commit import sha256_file
from stoker.errors import BadRequest, NewerFormat, StokerError
from stoker.host.plain_file import LARGEST_JSON
from stoker.use.classifier import open_classifier
from stoker.use.export.write import ExportOptions, export_run
from stoker.use.exported.files import is_export
from tiny_runs import one_thread_alone

__all__ = ["one_thread_alone"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exported")
    export_run(tiny_run(root, epochs=1), root / "out", ExportOptions())
    return root / "out"


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "out")


def edited(out: Path, **facts: Any) -> Path:
    config = config_of(out)
    config["stoker"] |= facts
    write_config(out, config)
    return out


FILE = {"bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "facts",
    [
        {"format": 0},
        {"format": "1"},
        {"files": {}},
        {"files": []},
        {"files": {"../run/best": FILE}},
        {"files": {"/etc/passwd": FILE}},
        {"files": {"model.safetensors": {"bytes": -1, "sha256": ""}}},
        {"files": {"model.safetensors": {"bytes": 1}}},
        {"files": {"model.safetensors": FILE}},
        {"files": {"model.onnx": FILE}},
        {"model": 3},
        {"model": "no_such_model"},
        {"model": "resnet9_w3"},
        {"model": "./net.py:build"},
        {"amp": "int1"},
        {"channels_last": "yes"},
        {"classes": ["a", "b"]},
        {"classes": ["a", "a", "b"]},
        {"classes": 3},
        {"input": None},
        {"input": {"image_size": 1 << 30, "crop_pct": 1, "mean": [0, 0, 0], "std": [1, 1, 1]}},
        {"input": {"image_size": 8, "crop_pct": 1, "mean": [0, 0, 0], "std": [0, 1, 1]}},
        {"storage": {"codec": "gif"}},
    ],
)
def test_a_wrong_config_is_refused(out: Path, facts: dict[str, Any]) -> None:
    with pytest.raises(StokerError):
        open_classifier(edited(out, **facts), CPU)


@pytest.mark.parametrize("missing", ["model", "amp", "channels_last", "input", "classes", "files"])
def test_a_config_without_a_fact_is_refused(out: Path, missing: str) -> None:
    config = config_of(out)
    del config["stoker"][missing]
    write_config(out, config)
    with pytest.raises(StokerError):
        open_classifier(out, CPU)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 100_000, '{"architecture": "resnet18"}', "\0", '{"a": NaN}']
)
def test_what_is_no_export(out: Path, text: str) -> None:
    (out / "config.json").write_text(text)
    assert not is_export(out)
    with pytest.raises(BadRequest, match="not an export"):
        open_classifier(out, CPU)


def test_wrong_facts_are_damage(out: Path) -> None:
    write_config(out, {"stoker": 3})
    with pytest.raises(StokerError, match="is damaged"):
        open_classifier(out, CPU)


def test_a_newer_format_is_not_damage(out: Path) -> None:
    with pytest.raises(NewerFormat):
        open_classifier(edited(out, format=2), CPU)


def test_a_huge_config_is_not_read(out: Path) -> None:
    os.truncate(out / "config.json", LARGEST_JSON + 1)
    assert not is_export(out)


@pytest.mark.parametrize("kind", ["missing", "changed", "longer", "link", "folder"])
def test_other_weights_are_refused(out: Path, tmp_path: Path, kind: str) -> None:
    file = out / "model.safetensors"
    data = file.read_bytes()
    file.unlink()
    if kind == "changed":
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif kind == "longer":
        file.write_bytes(data + b"0")
    elif kind == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        file.symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        file.mkdir()
    with pytest.raises(StokerError, match="is damaged"):
        open_classifier(out, CPU)


def test_what_holds_no_weights_is_refused(out: Path) -> None:
    file = out / "model.safetensors"
    for data in (b"\x80\x04K\x01.", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0{}      "):
        file.write_bytes(data)
        listed = {"bytes": len(data), "sha256": sha256_file(file)}
        with pytest.raises(StokerError, match=r"no weights|another model"):
            open_classifier(edited(out, files={file.name: listed}), CPU)


def test_a_folder_that_is_both_is_a_run(made: Path, tmp_path: Path) -> None:
    run = shutil.copytree(made.parent / "run", tmp_path / "run")
    shutil.copy(made / "config.json", run)
    assert "checkpoint" in open_classifier(run, CPU).origin
    assert json.loads((run / "config.json").read_text())["stoker"]["format"] == 1
