"""The wheel of the code that runs here."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import stoker
from stoker.errors import StokerError
from stoker.fleet.sky.wheel import KINDS, NAME, wheel_bytes

PACKAGE = Path(stoker.__file__).parent


@pytest.fixture(scope="module")
def wheel() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(wheel_bytes()))


def test_every_source_is_in_it_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name.removeprefix("stoker/") for name in wheel.namelist() if name[:7] == "stoker/"}
    sources = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*")}
    assert names == {name for name in sources if name.endswith(KINDS)}
    assert wheel.read("stoker/__init__.py") == (PACKAGE / "__init__.py").read_bytes()


def test_its_record_has_every_hash(wheel: zipfile.ZipFile) -> None:
    info = f"stoker-{stoker.__version__}.dist-info"
    rows = list(csv.reader(wheel.read(f"{info}/RECORD").decode().splitlines()))
    assert [row[0] for row in rows] == wheel.namelist()
    for name, digest, size in rows[:-1]:
        data = wheel.read(name)
        sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert (digest, size) == (f"sha256={sha}", str(len(data)))


def test_an_installer_learns_what_it_needs(wheel: zipfile.ZipFile) -> None:
    info = f"stoker-{stoker.__version__}.dist-info"
    text = wheel.read(f"{info}/METADATA").decode()
    assert "Requires-Dist: torch" in text
    assert "Provides-Extra: timm" in text
    assert f"Version: {stoker.__version__}\n" in text
    assert b"stoker.cli:main" in wheel.read(f"{info}/entry_points.txt")
    assert NAME.endswith("-py3-none-any.whl")


def test_the_same_files_give_the_same_bytes() -> None:
    assert wheel_bytes() == wheel_bytes()


def test_sources_that_were_never_installed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", missing)
    with pytest.raises(StokerError, match="pip install"):
        wheel_bytes()
