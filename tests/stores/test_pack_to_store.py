"""Packing into a real store gives the bytes of a local pack, whatever is killed on the way."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from fault_proxy import FaultProxy
from object_store import Gateway
from pack_conformance import messy_folder, source_of
from packing import contents, flipped
from samples import image_folder
from stoker.cli import main
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.options import PackOptions
from stoker.data.packing.pack import pack
from stoker.data.packing.shard import ShardReport
from stoker.data.packing.shares import SharedPack
from stoker.errors import BAD_REQUEST, FAILED, FINISHED, INTERRUPTED, BadRequest, StokerError
from stored_sets import client_at, copied, enter, shard_times, started, stored
from waiting import until

pytestmark = pytest.mark.exact
SHARD_IMAGES = 6
FLAGS = ("--shard-images", "6", "--workers", "1", "--spot-notice", "off")


@pytest.fixture
def location(gateway: Gateway, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return enter(gateway, bucket, tmp_path / "cache", monkeypatch)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return messy_folder(tmp_path_factory.mktemp("source") / "photos")


@pytest.fixture(scope="module")
def here(photos: Path) -> Path:
    """The same images, packed into a folder."""
    return pack(photos, photos.parent / "here", shard_images=SHARD_IMAGES, workers=1)


@pytest.mark.parametrize("form", ["folder", "list", "table", "archive"])
def test_the_bytes_are_those_of_a_local_pack(location: str, tmp_path: Path, form: str) -> None:
    source = source_of(form, tmp_path)
    pack(source, tmp_path / "here", shard_images=SHARD_IMAGES, workers=1)
    workers = 2 if form == "folder" else 1
    pack(source, location, shard_images=SHARD_IMAGES, workers=workers)
    assert stored(location) == contents(tmp_path / "here")
    before = shard_times(location)
    pack(source, location, shard_images=SHARD_IMAGES, workers=1)
    assert shard_times(location) == before
    assert Dataset(location).fingerprint == Dataset(tmp_path / "here").fingerprint


KILLS = [
    ("shard:written", 1),
    ("shard:uploaded", 3),
    ("part:uploaded", 4),
    ("set:uploaded", 1),
    ("set:committed", 1),
]


@pytest.mark.parametrize(("place", "nth"), KILLS)
def test_killed_anywhere_another_machine_goes_on(
    location: str, photos: Path, here: Path, tmp_path: Path, place: str, nth: int
) -> None:
    fault = {"fault": "kill", "at": place, "count": nth}
    first = started("pack", photos, location, *FLAGS, cache=tmp_path / "first", faults=(fault,))
    assert first.wait(300) == -signal.SIGKILL, first.communicate()
    first.communicate()
    parts = [found.key for found in client_at(location).list(".parts")]
    done = {key[7:-8].replace("-", "/", 1) + ".tar" for key in parts}
    before = {name: time for name, time in shard_times(location).items() if name in done}
    pack(photos, location, shard_images=SHARD_IMAGES, workers=1)
    assert stored(location) == contents(here)
    assert before.items() <= shard_times(location).items()


def test_what_a_killed_pack_left_on_the_disk_goes_with_the_next(
    location: str, photos: Path, tmp_path: Path
) -> None:
    fault = {"fault": "kill", "at": "shard:written", "count": 2}
    killed = started("pack", photos, location, *FLAGS, cache=tmp_path / "cache", faults=(fault,))
    killed.communicate(timeout=300)
    shards = tmp_path / "cache" / "packing" / "shards"
    assert len(list(shards.iterdir())) == 1
    pack(photos, location, shard_images=SHARD_IMAGES, workers=1)
    assert list(shards.iterdir()) == []
    assert not list((tmp_path / "cache").rglob("*.tar"))


def test_a_stop_says_where_the_shards_are(location: str, photos: Path, tmp_path: Path) -> None:
    stall = {"fault": "stall", "at": "part:uploaded", "count": 2, "seconds": 300.0}
    stall |= {"mark": str(tmp_path / "stalls")}
    process = started("pack", photos, location, *FLAGS, cache=tmp_path / "c", faults=(stall,))
    until(lambda: (tmp_path / "stalls").exists() or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == INTERRUPTED, errors
    assert output == f"packing {photos} into {location}\n"
    kept = f"finished shards are kept in {location}: run the same command to continue"
    assert f"packing stopped (SIGINT); {kept}" in errors
    assert len(client_at(location).list(".parts")) == 2


def test_a_stop_is_answered_while_the_store_fails(
    location: str,
    photos: Path,
    proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The workers would try again for minutes."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    proxy.fault("internal", method="PUT", key=r".*\.tar", times=None)
    flags = ("--shard-images", "6", "--workers", "2", "--spot-notice", "off")
    process = started("pack", photos, location, *flags, cache=tmp_path / "c")

    def is_refused() -> bool:
        return any(row.key.endswith(".tar") for row in proxy.asked)

    until(lambda: is_refused() or process.poll() is not None)
    os.kill(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == INTERRUPTED, errors
    assert "packing stopped (SIGTERM)" in errors


def test_two_packs_at_once_agree(location: str, photos: Path, here: Path, tmp_path: Path) -> None:
    both = [started("pack", photos, location, *FLAGS, cache=tmp_path / name) for name in ("a", "b")]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [FINISHED, FINISHED], outputs
    pack(photos, location, shard_images=SHARD_IMAGES, workers=1)
    assert stored(location) == contents(here)


def test_shares_of_several_machines_make_the_set(location: str, photos: Path, here: Path) -> None:
    options = PackOptions(shard_images=SHARD_IMAGES, workers=1)
    shared = SharedPack.of(str(photos), location, Storage(), options)
    request, _ = shared.prepare()
    reports: list[ShardReport] = []
    for share in (1, 0, 1):
        shared.write(request, share, 2, reports.append)
    before = shard_times(location)
    pack(photos, location, shard_images=SHARD_IMAGES, workers=1)
    assert stored(location) == contents(here)
    assert shard_times(location) == before


class TestRefused:
    def test_another_set(self, location: str, photos: Path) -> None:
        pack(photos, location, shard_images=SHARD_IMAGES, workers=1)
        before = stored(location)
        with pytest.raises(BadRequest, match=r"another packed set.*name a new location"):
            pack(photos, location, shard_images=5, workers=1)
        assert stored(location) == before

    def test_a_source_that_has_changed(self, location: str, tmp_path: Path) -> None:
        folder = image_folder(tmp_path / "photos", classes=2, images=4)
        pack(folder, location, workers=1)
        shutil.copy(folder / "class0" / "0000.jpg", folder / "class0" / "new.jpg")
        with pytest.raises(BadRequest, match=f"1 new image.*{location}-2' packs"):
            pack(folder, location, workers=1)

    def test_other_objects(self, location: str, photos: Path) -> None:
        client_at(location).write("thesis/chapter1.tex", b"text")
        with pytest.raises(BadRequest, match=r"neither empty nor.*holds thesis/chapter1.tex"):
            pack(photos, location, workers=1)
        assert [*stored(location)] == ["thesis/chapter1.tex"]

    def test_an_unfinished_pack_of_something_else(
        self, location: str, photos: Path, here: Path, tmp_path: Path
    ) -> None:
        fault = {"fault": "kill", "at": "part:uploaded", "count": 2}
        started("pack", photos, location, *FLAGS, cache=tmp_path / "c", faults=(fault,)).wait(300)
        before = stored(location)
        with pytest.raises(BadRequest, match=r"unfinished shards of another pack"):
            pack(photos, location, shard_images=5, workers=1)
        other = image_folder(tmp_path / "other", classes=2, images=4)
        with pytest.raises(BadRequest, match=r"unfinished shards of another pack"):
            pack(other, location, workers=1)
        assert stored(location) == before
        client_at(location).delete([".source.json"])
        pack(photos, location, shard_images=7, workers=1)
        pack(photos, tmp_path / "here", shard_images=7, workers=1)
        assert stored(location) == contents(tmp_path / "here")

    def test_a_source_without_one_readable_image_leaves_nothing(
        self, location: str, tmp_path: Path
    ) -> None:
        for name in ("cat", "dog"):
            (tmp_path / "photos" / name).mkdir(parents=True)
            (tmp_path / "photos" / name / "1.jpg").write_text("no image")
        with pytest.raises(BadRequest, match="could be read"):
            pack(tmp_path / "photos", location, workers=1)
        assert client_at(location).list() == []

    def test_the_same_names_in_another_folder(
        self, location: str, photos: Path, tmp_path: Path
    ) -> None:
        pack(photos, location, shard_images=SHARD_IMAGES, workers=1)
        shutil.copytree(photos, tmp_path / "photos")
        with pytest.raises(BadRequest, match=r"was packed from .*remove s3://.*/\.source\.json"):
            pack(tmp_path / "photos", location, shard_images=SHARD_IMAGES, workers=1)

    def test_a_set_that_is_packed_already(self, location: str, here: Path) -> None:
        with pytest.raises(BadRequest, match=f"stoker upload {here} {location}"):
            pack(here, location, workers=1)

    def test_a_bucket_that_does_not_exist(
        self, location: str, photos: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["pack", str(photos), "s3://no-such-bucket/x", "--workers", "1"]) == FAILED
        assert "there is no such bucket (no-such-bucket)" in capsys.readouterr().err


def test_a_shard_that_was_changed_on_the_way_is_not_part_of_a_set(
    location: str, photos: Path, here: Path, tmp_path: Path
) -> None:
    fault = {"fault": "kill", "at": "set:uploaded"}
    started("pack", photos, location, *FLAGS, cache=tmp_path / "c", faults=(fault,)).wait(300)
    client = client_at(location)
    data = client.read("train/00001.tar")[0]
    client.write("train/00001.tar", flipped(data, 700))
    pack(photos, location, shard_images=SHARD_IMAGES, workers=1)
    assert stored(location) == contents(here)


class TestUpload:
    def test_a_set_is_copied_as_it_is(
        self, location: str, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["upload", str(here), location]) == FINISHED
        assert f"'stoker train {location}' trains from it" in capsys.readouterr().out
        assert stored(location) == contents(here)
        assert client_at(location).find(".source.json") is None
        assert main(["upload", str(here), location]) == FINISHED
        assert "is already at" in capsys.readouterr().out

    @pytest.mark.parametrize(("place", "nth"), [("file:uploaded", 5), ("set:sent", 1)])
    def test_killed_it_goes_on(
        self, location: str, here: Path, tmp_path: Path, place: str, nth: int
    ) -> None:
        fault = {"fault": "kill", "at": place, "count": nth}
        killed = started("upload", here, location, cache=tmp_path / "c", faults=(fault,))
        killed.communicate(timeout=300)
        assert killed.returncode == -signal.SIGKILL
        marked = len(client_at(location).list(".parts/sent"))
        before = shard_times(location)
        assert main(["upload", str(here), location]) == FINISHED
        assert stored(location) == contents(here)
        same = before.items() & shard_times(location).items()
        assert len(same) >= marked - len(["train/index", "val/index", "rejected"])

    def test_a_damaged_set_is_not_completed(
        self, location: str, here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        damaged = shutil.copytree(here, tmp_path / "damaged")
        tar = damaged / "train" / "00001.tar"
        tar.write_bytes(flipped(tar.read_bytes(), 700))
        assert main(["upload", str(damaged), location]) == FAILED
        assert f"{tar} is damaged" in capsys.readouterr().err
        assert not Dataset.is_packed(location)
        assert client_at(location).find("train/00001.tar") is None

    def test_another_set_is_not_written_over(
        self, location: str, here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        other = pack(image_folder(tmp_path / "photos", images=4), tmp_path / "set", workers=1)
        copied(other, location)
        before = stored(location)
        assert main(["upload", str(here), location]) == BAD_REQUEST
        assert "holds another packed set" in capsys.readouterr().err
        assert stored(location) == before

    def test_what_is_not_a_set_or_not_a_location(
        self, location: str, photos: Path, here: Path, tmp_path: Path
    ) -> None:
        assert main(["upload", str(photos), location]) == BAD_REQUEST
        assert main(["upload", str(here), str(tmp_path / "folder")]) == BAD_REQUEST
        with pytest.raises(StokerError, match="can only be read"):
            pack(photos, "https://127.0.0.1:9/set", workers=1)
