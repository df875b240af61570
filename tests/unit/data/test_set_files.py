"""A set on a web server is checked as it is served."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from packing import flipped
from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from stoker.data.verify import verify
from stoker.errors import BadRequest
from stores.web_folder import WebFolder

pytest.importorskip("obstore", reason="no obstore: pip install obstore")
NOTE = "a web server does not list its files: others were not searched for"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=2, images=10, val=3)
    return pack(folder, root / "packed", workers=1, shard_images=8)


@pytest.fixture
def packed(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "web" / "packed")


@pytest.fixture
def server(packed: Path, tmp_path: Path) -> Iterator[WebFolder]:
    with closing(WebFolder(packed.parent)) as started:
        yield started


def test_an_intact_set(server: WebFolder, packed: Path) -> None:
    report, here = verify(f"{server.endpoint}/packed"), verify(packed)
    assert (report.problems, report.notes) == ([], [NOTE])
    assert (report.images, report.bytes) == (here.images, here.bytes)
    shards = [path for method, path, _ in server.asked if method == "GET" and ".tar" in path]
    assert len(shards) == len(set(shards)) == here.shards


def test_damage_is_named_as_in_a_folder(server: WebFolder, packed: Path) -> None:
    tar = packed / "train" / "00000.tar"
    tar.write_bytes(flipped(tar.read_bytes(), 700))
    (packed / "val" / "00000.tar").unlink()
    problems = verify(f"{server.endpoint}/packed").problems
    assert problems == verify(packed).problems
    assert {problem.file for problem in problems} == {"train/00000.tar", "val/00000.tar"}


def test_a_folder_without_a_set(server: WebFolder, packed: Path) -> None:
    (packed / "dataset.json").unlink()
    with pytest.raises(BadRequest, match="is not a packed set"):
        verify(f"{server.endpoint}/packed")


def test_a_set_is_known_by_its_location(
    server: WebFolder, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Dataset(f"{server.endpoint}/packed")
    assert there.place == there.name == f"{server.endpoint}/packed"
    monkeypatch.chdir(packed.parent)
    assert Dataset("packed").place == str(packed.resolve())
