"""stoker fetch: a set on a web server comes into the cache; what cannot be had is a sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from samples import image_folder
from stoker.cli import main
from stoker.data.packing.pack import pack
from stoker.errors import BAD_REQUEST, FAILED, FINISHED
from stores.web_folder import WebFolder

pytest.importorskip("obstore", reason="no obstore: pip install obstore")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=2, images=8, val=2)
    return pack(folder, root / "packed", workers=1, shard_images=8)


@pytest.fixture
def server(packed: Path) -> Iterator[WebFolder]:
    with closing(WebFolder(packed.parent)) as started:
        yield started


def test_a_set_on_a_web_server(
    server: WebFolder, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    location = f"{server.endpoint}/packed"
    assert main(["fetch", location, str(tmp_path / "my cache")]) == FINISHED
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"fetching {location} into {tmp_path / 'my cache'}"
    assert lines[1].startswith("3 of 3 shards (")
    assert lines[2] == f"STOKER_CACHE='{tmp_path / 'my cache'}' stoker train {location}"
    sizes = {path.stat().st_size for path in (tmp_path / "my cache" / "files").iterdir()}
    assert {path.stat().st_size for path in packed.glob("*/*.tar")} <= sizes


def test_a_file_that_is_missing(
    server: WebFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", f"{server.endpoint}/none", str(tmp_path)]) == BAD_REQUEST
    assert "is not a packed set (it has no dataset.json)" in capsys.readouterr().err


def test_without_credentials_it_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    assert main(["fetch", "s3://bucket/set", str(tmp_path)]) == FAILED
    answer = "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["fetch"], ["verify"], ["train"], ["pack", "tests"], ["upload", "tests"]]
)
def test_without_obstore_the_package_is_named(
    words: list[str],
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path))
    words = [str(packed) if word == "tests" else word for word in words]
    assert main([*words, "s3://bucket/set"]) == BAD_REQUEST
    assert "needs obstore: pip install obstore" in capsys.readouterr().err
