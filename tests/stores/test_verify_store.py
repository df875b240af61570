"""A set in a real store is checked as one in a folder: the same problems, in the same words."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fault_proxy import FaultProxy
from object_store import Gateway
from packing import flipped
from samples import image_folder
from stoker.cli import main
from stoker.data.packing.pack import pack
from stoker.data.verify import verify
from stoker.errors import FAILED, FINISHED
from stored_sets import copied, enter
from waiting import until

pytestmark = pytest.mark.exact


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=2, images=10, val=3)
    return pack(folder, root / "packed", workers=1, shard_images=8)


@pytest.fixture
def location(gateway: Gateway, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return enter(gateway, bucket, tmp_path / "cache", monkeypatch)


def change(name: str, offset: int) -> Callable[[Path], None]:
    return lambda packed: write(packed / name, flipped((packed / name).read_bytes(), offset))


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def swap(packed: Path) -> None:
    shutil.copy(packed / "train" / "00001.tar", packed / "train" / "00000.tar")


def cut(packed: Path) -> None:
    tar = packed / "train" / "00001.tar"
    write(tar, tar.read_bytes()[:9000])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda packed: None,
    "an image": change("train/00001.tar", 700),
    "a header": change("train/00000.tar", 20),
    "a cut shard": cut,
    "a missing shard": lambda packed: (packed / "val" / "00000.tar").unlink(),
    "another shard's bytes": swap,
    "an index": change("train/index.parquet", 50),
    "a missing index": lambda packed: (packed / "val" / "index.parquet").unlink(),
    "the description": change("dataset.json", 300),
    "an unlisted shard": lambda packed: write(packed / "train" / "00009.tar", b"1"),
    "an unlisted file": lambda packed: write(packed / "notes.txt", b"1"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_problems_are_those_of_a_folder(
    location: str, whole: Path, tmp_path: Path, damage: str
) -> None:
    packed = shutil.copytree(whole, tmp_path / "packed")
    DAMAGES[damage](packed)
    copied(packed, location)
    there, here = verify(location), verify(packed)
    assert (there.problems, there.notes) == (here.problems, here.notes)
    assert (there.images, there.shards, there.bytes) == (here.images, here.shards, here.bytes)
    assert bool(here.problems) == (damage not in ("nothing", "an unlisted file"))


def test_each_object_is_read_once_and_nothing_is_cached(
    gateway: Gateway, location: str, whole: Path, tmp_path: Path
) -> None:
    copied(whole, location)
    earlier = len(gateway.requests())
    assert main(["verify", location, "--threads", "3"]) == FINISHED

    def read() -> list[str]:
        rows = gateway.requests()[earlier:]
        return [row.key for row in rows if row.key.endswith((".tar", ".parquet"))]

    expected = len([*whole.rglob("*.tar"), *whole.rglob("[!.]*.parquet")])
    until(lambda: len(read()) >= expected)
    assert len(set(read())) == len(read()) == expected
    # That this place was named, and nothing of it.
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["named"]


def test_a_store_that_refuses_is_no_damage(
    location: str,
    whole: Path,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copied(whole, location)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    proxy.fault("denied", key=".*/train/00001.tar", times=None)
    assert main(["verify", location]) == FAILED
    captured = capsys.readouterr()
    assert "access is denied" in captured.err
    assert "DAMAGED" not in captured.out


def test_damage_on_the_way_is_found(
    location: str, whole: Path, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(whole, location)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    proxy.fault("wrong_bytes", key=".*/val/00000.tar")
    proxy.fault("reset_body", key=".*/train/00000.tar")
    assert {problem.file for problem in verify(location).problems} == {"val/00000.tar"}
