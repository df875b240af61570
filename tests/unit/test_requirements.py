"""The list of packages with hashes: names, versions and hashes, and nothing else."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hashed", ROOT / ".ci" / "requirements.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(name: str, **archive: Any) -> dict[str, Any]:
    url = f"https://user:password@index.example/{name}-1.0-py3-none-any.whl"
    info = {"url": url, "archive_info": archive}
    return {"metadata": {"name": name, "version": "1.0"}, "download_info": info}


def test_lines_have_names_versions_and_hashes_alone(script: ModuleType) -> None:
    found = [package(name, hashes={"sha256": "ab" * 32}) for name in ("Zip", "alpha")]
    lines = script.lines({"install": found})
    assert [line.split("==")[0] for line in lines] == ["alpha", "zip"]
    assert all(re.fullmatch(r"[a-z]+==1\.0 --hash=sha256:[0-9a-f]{64}", line) for line in lines)


@pytest.mark.parametrize("archive", [{}, {"hashes": {}}, {"hashes": {"md5": "1"}}])
def test_a_package_without_a_hash_is_refused(script: ModuleType, archive: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match=r"no SHA-256 hash for alpha 1\.0"):
        script.lines({"install": [package("alpha", **archive)]})


def test_everything_that_the_project_names_is_asked_for(script: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = script.requirements(project, ["timm"])
    assert {*project["project"]["dependencies"], *project["build-system"]["requires"]} < {*needed}
    assert any(name.startswith("timm") for name in needed)
    with pytest.raises(SystemExit, match="no extra called nonsense"):
        script.requirements(project, ["nonsense"])
